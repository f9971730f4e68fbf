"""The sandbox as a process of its own, beside the service and without its secrets."""
