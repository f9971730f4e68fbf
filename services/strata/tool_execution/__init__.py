"""Tool execution: the registry of tools, and the running of the calls that agents make."""
