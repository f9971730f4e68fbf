"""Passages from files."""
