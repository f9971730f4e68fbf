"""Folders of files that agents can open, search and read."""
