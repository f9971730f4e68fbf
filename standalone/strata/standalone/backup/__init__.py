"""Backups of a data folder, and data folders from backups."""
