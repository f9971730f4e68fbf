"""The memory of an agent as an MCP server: tools that read and edit it, blocks as resources."""
