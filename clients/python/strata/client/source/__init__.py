"""Extracts self-contained source code from a function object."""

from strata.client.source.extract import tool_source

__all__ = ["tool_source"]
