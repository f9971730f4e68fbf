"""Searches messages; indexes them and rebuilds their index."""
