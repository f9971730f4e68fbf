"""Folders, files and their contents in PostgreSQL."""
