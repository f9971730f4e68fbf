"""Rebuilds of a collection while it serves searches: state, steps and check."""

from strata.shared.search.reindexing.state import (
    CopyProgress,
    FoundCounts,
    Phase,
    Reindex,
    Serving,
    slot_of,
)

__all__ = ["CopyProgress", "FoundCounts", "Phase", "Reindex", "Serving", "slot_of"]
