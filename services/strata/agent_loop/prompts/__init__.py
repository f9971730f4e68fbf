"""Base system prompts, and the assembly of the system message. Pure."""
