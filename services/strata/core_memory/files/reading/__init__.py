"""Turning the bytes of a file into numbered lines of text, in a process of its own."""
