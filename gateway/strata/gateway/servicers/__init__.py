"""The gateway's own services."""
