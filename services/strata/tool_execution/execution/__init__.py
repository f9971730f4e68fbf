"""Execution of the tool calls of one reply."""
