"""Services that are known by name: one file each, and one entry in `table.py`."""
