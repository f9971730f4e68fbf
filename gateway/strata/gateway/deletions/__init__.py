"""Deletions of agents that are finished even if a process dies meanwhile."""
