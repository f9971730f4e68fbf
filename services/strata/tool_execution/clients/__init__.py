"""Clients of the services that tools call."""
