"""Adapters for OpenAI's chat completions and Responses APIs."""
