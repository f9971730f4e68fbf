"""Conversion and validation of the messages of the tool runner."""
