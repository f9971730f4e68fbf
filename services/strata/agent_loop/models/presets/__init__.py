"""Known services: one file and one entry in `table.py` each."""
