"""The registry of tools."""
