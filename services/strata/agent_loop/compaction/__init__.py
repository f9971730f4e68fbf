"""Compaction: replaces older messages of a window by a summary."""
