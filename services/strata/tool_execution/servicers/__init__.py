"""gRPC servicers of tool execution."""

from strata.tool_execution.servicers.execution import ExecutionServicer
from strata.tool_execution.servicers.mcp import McpServicer
from strata.tool_execution.servicers.tools import ToolServicer

__all__ = ["ExecutionServicer", "McpServicer", "ToolServicer"]
