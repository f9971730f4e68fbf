"""Conversion and validation between messages of the wire and the domain."""
