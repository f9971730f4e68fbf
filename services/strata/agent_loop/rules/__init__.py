"""Which tools may be called when: pure, and nothing of it is remembered between two questions."""
