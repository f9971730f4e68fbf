"""Measures Strata and libraries that a team may use instead of a server.

Each library has a program that runs in a virtual environment of its own.
"""
