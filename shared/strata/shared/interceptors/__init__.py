"""Interceptors of servers and clients, around every call: logs, errors, keys, deadlines."""
