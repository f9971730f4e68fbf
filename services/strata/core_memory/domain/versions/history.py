"""Diffs and blame of a block's versions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strata.core_memory.domain.blocks import block_not_found, version_not_found
from strata.core_memory.domain.ports import BlockStore
from strata.core_memory.domain.text_edits.diffs import unified_diff
from strata.core_memory.domain.versions.blame import Blame, LineOrigin

# The versions of one page are in memory together, each with up to a million characters.
_PAGE = 20


class History:
    """Compares versions of blocks, including deleted blocks."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    async def diff(self, block_id: str, from_revision: int, to_revision: int) -> str:
        """Returns the unified diff of two versions.

        Args:
            block_id: The block.
            from_revision: The older one; 0 for the one before `to_revision`.
            to_revision: The newer one; 0 for the current one.

        Raises:
            NotFoundError: There is no such block or version.
        """
        block = await self._store.block(block_id)
        if block is None:
            raise block_not_found(block_id)
        newer = to_revision or block.revision
        older = from_revision or newer - 1
        values = await self._store.values(block_id, [older, newer])
        for revision in (older, newer):
            # The first version is compared with an empty text.
            if revision not in values and (from_revision or revision != 0):
                raise version_not_found(block_id, revision)
        return await asyncio.to_thread(unified_diff, values.get(older, ""), values[newer])

    async def blame(self, block_id: str, revision: int) -> tuple[int, Sequence[LineOrigin]]:
        """Returns the revision of a text, and its lines with the versions that wrote them.

        Args:
            block_id: The block.
            revision: The text at this revision; 0 for the newest.

        Raises:
            NotFoundError: There is no such block or version.
        """
        before = revision + 1 if revision else 0
        page = await self._store.versions(block_id, before, _PAGE)
        if not page or (revision and page[0].revision != revision):
            raise await self._missing(block_id, revision)
        blame, blamed_revision = Blame(), page[0].revision
        while page and not await asyncio.to_thread(blame.read, page):
            page = await self._store.versions(block_id, page[-1].revision, _PAGE)
        return blamed_revision, blame.origins()

    async def _missing(self, block_id: str, revision: int) -> Exception:
        if await self._store.block(block_id) is None:
            return block_not_found(block_id)
        return version_not_found(block_id, revision)
