"""A chat model for a machine that has none: discovery of local servers, and a small local demo."""
