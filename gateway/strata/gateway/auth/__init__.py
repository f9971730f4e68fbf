"""API keys: authentication, scopes and rate limits."""
