"""Rebuilding a collection while it serves: its state, its steps and its check."""

from strata.shared.vectors.reindex.state import (
    Phase,
    Progress,
    Reindex,
    Serving,
    Share,
    slot_of,
)

__all__ = ["Phase", "Progress", "Reindex", "Serving", "Share", "slot_of"]
