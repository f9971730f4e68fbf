"""Edits of memory blocks, as the events of a run report them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NEW_LABEL_OPERATIONS = frozenset({"create", "rename"})


@dataclass(frozen=True, slots=True)
class MemoryEdit:
    """A change that a tool made to a memory block.

    Attributes:
        block_id: The block.
        label: Its label after the edit.
        revision: Its revision after the edit.
        diff: Unified diff of its value, without file headers.
        operation: The kind of change: "append", "rename" and so on.
    """

    block_id: str
    label: str
    revision: int
    diff: str
    operation: str = ""


def revisions_after(revisions: Mapping[str, int], edits: Iterable[MemoryEdit]) -> Mapping[str, int]:
    """Returns the block revisions that a model has read, for calls after edits of the same reply.

    The model has read the revisions from before the reply, so they stay. Blocks that the reply
    itself created or renamed are left out: the model did not see them under their labels.

    Args:
        revisions: The revisions that the model has read, by label.
        edits: The edits of earlier calls of the reply.
    """
    new_labels = {edit.label for edit in edits if edit.operation in _NEW_LABEL_OPERATIONS}
    if new_labels.isdisjoint(revisions):
        return revisions
    return {label: revision for label, revision in revisions.items() if label not in new_labels}
