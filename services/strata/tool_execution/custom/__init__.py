"""Execution of custom tools, whose source code projects store in the registry."""
