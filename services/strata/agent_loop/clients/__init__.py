"""Clients of the other services and of web hosts, which implement the protocols of the domain."""
