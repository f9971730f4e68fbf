"""Runs of groups: choice of the next speaker, and the turns of the members as one run."""
