"""Talking with an agent: following its runs, and showing them."""
