"""The chat: sends messages to an agent and shows its runs."""
