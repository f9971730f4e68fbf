"""From a function object to source that stands alone."""

from strata.client.source.extract import tool_source

__all__ = ["tool_source"]
