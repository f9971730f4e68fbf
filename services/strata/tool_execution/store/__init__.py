"""Tools, secrets, MCP servers and repeated requests in PostgreSQL."""

from strata.tool_execution.store.mcp import PostgresMcpStore
from strata.tool_execution.store.secrets import PostgresSecretStore
from strata.tool_execution.store.tools import PostgresToolStore

__all__ = ["PostgresMcpStore", "PostgresSecretStore", "PostgresToolStore"]
