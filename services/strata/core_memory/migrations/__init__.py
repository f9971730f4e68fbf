"""The schema of core memory."""
