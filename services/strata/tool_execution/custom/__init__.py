"""Runs the tools that projects write themselves."""
