"""Marks of text that was written while strangers' text was read (decision 0080).

A block is marked with the labels of all edits that led to its text. No edit of an agent takes a
mark off: whoever can write the text could write it clean. A person takes it off, by setting
another value as a whole, by saying so, or by going back to a text without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from strata.core_memory.domain.blocks import Block, Version

WEB = "web"
MCP = "mcp"
LABELS = (WEB, MCP)
"""In the order in which they are told."""


def joined(*marks: Iterable[str]) -> tuple[str, ...]:
    """Returns all labels of some marks, each once, in a fixed order."""
    found = {label for mark in marks for label in mark}
    return tuple(label for label in LABELS if label in found)


def marked(before: Block | None, after: Block, mark: Iterable[str]) -> Block:
    """Returns a block after an edit that was made under a mark.

    Args:
        before: The block before; None if the edit made it.
        after: What the edit made of it.
        mark: What the editor had read.
    """
    if after == before:
        return after
    kept = () if before is None else before.taint
    return replace(after, taint=joined(kept, mark))


def undone(block: Block, before: Version) -> tuple[str, ...]:
    """Returns the mark of a block after edits were undone.

    Args:
        block: As it is then, with the mark that it had.
        before: The version before those edits.
    """
    same = (block.label, block.value, block.description)
    if same == (before.label, before.value, before.description):
        return before.taint
    # Where later edits stay, nobody can say what of them came of what was undone; and undoing
    # what a person rewrote brings marked text back.
    return joined(block.taint, before.taint)
