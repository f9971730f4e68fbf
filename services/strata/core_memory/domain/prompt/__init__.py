"""The memory section of the system prompt: its compilation, text and size limits."""
