"""Domain types of tools and tool calls, independent of gRPC and the database."""
