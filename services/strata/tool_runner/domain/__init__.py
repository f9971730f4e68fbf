"""Interfaces of the tool runner."""
