"""Rebuilding a collection while it serves: its state, its steps and its check."""

from strata.shared.vectors.reindex.state import (
    CopyProgress,
    FoundCounts,
    Phase,
    Reindex,
    Serving,
    slot_of,
)

__all__ = ["CopyProgress", "FoundCounts", "Phase", "Reindex", "Serving", "slot_of"]
