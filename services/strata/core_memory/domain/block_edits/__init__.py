"""Edits of stored blocks by agents: the verbs and patches in one transaction."""
