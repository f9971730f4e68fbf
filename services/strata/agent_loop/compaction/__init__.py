"""Compaction: a summary takes the place of older messages in a window, and cannot fail."""
