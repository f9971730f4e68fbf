"""Engines that a laptop runs by itself: PostgreSQL and Qdrant's engine as supervised children."""
