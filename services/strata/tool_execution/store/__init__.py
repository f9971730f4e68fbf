"""PostgreSQL stores of tools, secrets, MCP servers, sign-ins and request ids."""

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
