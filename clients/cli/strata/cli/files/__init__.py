"""Folders and files on the command line."""
