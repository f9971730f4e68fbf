"""The pages of the console that need a session."""
