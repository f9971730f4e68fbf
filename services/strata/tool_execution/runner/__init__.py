"""The sandbox as a process of its own, beside the room and without its secrets."""
