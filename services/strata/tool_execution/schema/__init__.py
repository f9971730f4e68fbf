"""From Python source to what a model is told of a tool, without running any of it."""

from strata.tool_execution.schema.derive import DerivedTool, derive_tool
from strata.tool_execution.schema.problems import Problem, SourceError

__all__ = ["DerivedTool", "Problem", "SourceError", "derive_tool"]
