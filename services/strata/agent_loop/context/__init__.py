"""The content of a model request: messages, tools and system message, and their size."""
