"""Recordings of runs, and replaying them against this build."""
