"""Rebuilds of a collection while it serves searches: state, steps and check."""

from strata.shared.search.reindexing.state import CopyProgress, FoundCounts, Phase, Reindex

__all__ = ["CopyProgress", "FoundCounts", "Phase", "Reindex"]
