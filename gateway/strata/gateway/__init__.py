"""The edge: keys, quotas, runs and their event log, and the proxy to every public service."""
