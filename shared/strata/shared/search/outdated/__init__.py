"""Marks texts among the results of a search whose statement a newer one seems to replace."""

from strata.shared.search.outdated.detection import DatedText, Outdated, possibly_outdated

__all__ = ["DatedText", "Outdated", "possibly_outdated"]
