"""Runs of groups: who speaks when, and how the turns of the members become one run."""
