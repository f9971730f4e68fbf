"""Stores of runs in PostgreSQL."""
