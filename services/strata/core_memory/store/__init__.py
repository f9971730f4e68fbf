"""Stores blocks in PostgreSQL."""
