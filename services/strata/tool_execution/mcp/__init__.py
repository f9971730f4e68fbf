"""Client of the Model Context Protocol (MCP)."""
