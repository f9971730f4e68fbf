"""The domain of the agent loop: agents, conversations, messages, runs. Pure."""
