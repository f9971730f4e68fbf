"""Recall memory: every message ever stored, and the context windows over them."""
