"""Blocks in PostgreSQL."""
