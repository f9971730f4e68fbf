"""API keys: who may call what, and how often."""
