"""The agent loop room: agents, conversations, steps, and the calls to chat models."""
