"""Tools, secrets, MCP servers, sign-ins to them and repeated requests in PostgreSQL."""

from strata.tool_execution.store.mcp import PostgresMcpStore
from strata.tool_execution.store.mcp_sign_ins import PostgresSignInStore
from strata.tool_execution.store.secrets import PostgresSecretStore
from strata.tool_execution.store.tools import PostgresToolStore

__all__ = [
    "PostgresMcpStore",
    "PostgresSecretStore",
    "PostgresSignInStore",
    "PostgresToolStore",
]
