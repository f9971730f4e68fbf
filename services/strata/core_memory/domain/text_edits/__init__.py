"""Edits of one text: the memory verbs, patches, merges and diffs, without stored state."""
