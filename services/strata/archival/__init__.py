"""Archival memory: passages put away for later, found by meaning and by words."""
