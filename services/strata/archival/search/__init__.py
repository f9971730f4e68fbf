"""Searches passages and chunks of files; indexes them and rebuilds their indexes."""
