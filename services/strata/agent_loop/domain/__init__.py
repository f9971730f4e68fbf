"""What the agent loop is about: agents, conversations, messages, runs. Pure."""
