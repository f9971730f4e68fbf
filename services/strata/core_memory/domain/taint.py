"""Taint labels of blocks: their text may derive from untrusted content (decision 0080).

A block has the labels of all edits that led to its text. No edit of an agent removes a label,
since an agent under the influence of untrusted content could remove it. A person removes
labels: by setting a new value, with `clear_taint`, or by reverting to a text without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from strata.core_memory.domain.blocks import Block, Version
from strata.shared.provenance import taint_of


def marked(before: Block | None, after: Block, mark: Iterable[str]) -> Block:
    """Returns a block after an edit, with the taint labels of the edit added.

    Args:
        before: The block before; None if the edit made it.
        after: The block after.
        mark: Labels of the untrusted content that the editor had read.
    """
    if after == before:
        return after
    earlier_taint = () if before is None else before.taint
    return replace(after, taint=taint_of(earlier_taint, mark))


def undone(block: Block, before: Version) -> tuple[str, ...]:
    """Returns the taint labels of a block after edits were undone.

    Args:
        block: The block after that, still with its old labels.
        before: The version before those edits.
    """
    same = (block.label, block.value, block.description)
    if same == (before.label, before.value, before.description):
        return before.taint
    # Later edits that stay may derive from the undone ones. Undoing the edit of a person
    # restores tainted text.
    return taint_of(block.taint, before.taint)
