"""The wire protocols of model servers: one file and one entry in `table.py` each."""
