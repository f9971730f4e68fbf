"""Converts between protos and the domain, and validates requests."""
