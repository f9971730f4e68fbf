"""The request, the events and the journal of a run."""
