"""Converts values that several services have between protos and their plain form.

The plain forms are in `strata.shared` itself, so that domain code can use them.
"""
