"""Reaching the web without being led elsewhere: addresses, the guard, bounded fetching."""
