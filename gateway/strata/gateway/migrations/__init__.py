"""Schema of the gateway."""
