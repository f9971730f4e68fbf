"""Libraries that a team may use instead of a server, measured beside Strata.

Each library has a program that runs in a virtual environment of its own.
"""
