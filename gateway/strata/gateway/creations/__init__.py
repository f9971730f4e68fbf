"""Creations of agents that are rolled back if they were cut off and are not repeated."""
