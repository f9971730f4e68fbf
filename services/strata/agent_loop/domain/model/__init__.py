"""The loop's interface to chat models: requests, replies, settings, errors and stored keys."""
