"""The sandbox in a separate process (tool runner) that has none of the service's secrets."""
