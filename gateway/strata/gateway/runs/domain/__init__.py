"""Data and rules of runs. Pure: no transport, no database, no protobuf."""
