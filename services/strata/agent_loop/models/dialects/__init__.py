"""The wire protocols that models are called by: one file each, and one entry in `table.py`."""
