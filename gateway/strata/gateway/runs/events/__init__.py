"""Event streams of runs: the event log of a run, and its followers."""
