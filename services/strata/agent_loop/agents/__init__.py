"""Creates, changes and inspects agents and groups."""
