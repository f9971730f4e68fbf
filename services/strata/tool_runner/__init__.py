"""The tool runner: runs code of tools in a sandbox. It has no database and calls no service."""
