"""An MCP server for an agent's memory; it is a client of the gateway."""
