"""Converts between protos and domain types, and validates requests."""
