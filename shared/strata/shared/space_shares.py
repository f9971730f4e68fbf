"""Divides a limited space among texts: short ones are kept whole, and long ones share the rest."""

from __future__ import annotations

from collections.abc import Iterable


def share_of_each(sizes: Iterable[int], space: int) -> int:
    """Returns the greatest size such that texts, each cut to it, fit into the space together.

    Args:
        sizes: The sizes of the texts.
        space: The space for all of them, in the same unit.
    """
    ascending, left = sorted(sizes), space
    for position, size in enumerate(ascending):
        share = left // (len(ascending) - position)
        if size > share:
            return max(share, 0)
        # Space that short texts leave unused goes to the long ones.
        left -= size
    return max(ascending, default=0)
