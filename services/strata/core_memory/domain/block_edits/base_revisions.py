"""The base revision of an edit: the text that the editor saw, which may be outdated."""

from __future__ import annotations

from strata.core_memory.domain.blocks import Block, revision_mismatch
from strata.core_memory.domain.ports import Unit


def is_outdated(block: Block, base_revision: int) -> bool:
    """Returns whether the block has changed since a revision; 0 means the newest.

    Raises:
        AbortedError: The block has no such revision yet (``REVISION_MISMATCH``).
    """
    if base_revision > block.revision:
        raise revision_mismatch(block, base_revision)
    return base_revision not in (0, block.revision)


async def text_at(unit: Unit, block: Block, revision: int) -> str:
    """Returns the text of a block at a revision.

    Raises:
        AbortedError: There is no such revision (``REVISION_MISMATCH``).
    """
    value = await unit.value_at(block.id, revision)
    if value is None:
        raise revision_mismatch(block, revision)
    return value
