"""Converts between protos and the domain; the only place that validates requests."""
