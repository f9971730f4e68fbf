"""Validation and conversion of requests and responses for runs."""
