"""The rebuild of a whole collection, whose contents the service provides."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from strata.protocol.errors import UnavailableError
from strata.shared.search.indexing.generations import Serving
from strata.shared.search.indexing.text_index import TextIndex
from strata.shared.search.reindexing.check import StoredText
from strata.shared.search.reindexing.ledger import Ledger
from strata.shared.search.reindexing.reindexer import Batch
from strata.shared.search.reindexing.state import FoundCounts, Phase, Reindex
from strata.shared.search.vectors.index import Where


class CollectionContents(Protocol):
    """The texts of a collection in PostgreSQL, over all projects."""

    async def count(self) -> int:
        """Returns the number of texts."""
        ...

    async def batch(self, cursor: tuple[str, ...], limit: int) -> Batch | None:
        """See `Rebuildable.batch`."""
        ...

    async def changed(self, batch: Batch) -> list[str]:
        """Marks texts that changed since the batch was read as waiting; returns deleted ids."""
        ...

    async def texts(self, keys: Sequence[tuple[str, str]]) -> list[StoredText]:
        """Returns the given texts that still exist."""
        ...


class WholeCollection:
    """A `Rebuildable` for a whole collection.

    Args:
        texts: The index of the collection.
        contents: The texts in PostgreSQL.
        ledger: The stored generations and rebuilds.
    """

    def __init__(self, texts: TextIndex, contents: CollectionContents, ledger: Ledger) -> None:
        self._texts = texts
        self._contents = contents
        self._ledger = ledger

    def place(self, generation: Serving) -> TextIndex:
        """See `Rebuildable.place`."""
        return self._texts

    async def source(self, job: Reindex) -> Serving:
        """See `Rebuildable.source`."""
        return job.source

    async def batch(self, job: Reindex, limit: int) -> Batch | None:
        """See `Rebuildable.batch`."""
        return await self._contents.batch(job.progress.cursor, limit)

    async def settle(self, job: Reindex, batch: Batch) -> None:
        """See `Rebuildable.settle`."""
        if changed_ids := await self._contents.changed(batch):
            await self._texts.remove(batch.project_id, changed_ids, within=[job.target])

    async def texts(self, job: Reindex, keys: Sequence[tuple[str, str]]) -> list[StoredText]:
        """See `Rebuildable.texts`."""
        return await self._contents.texts(keys)

    def where(self, job: Reindex) -> Where:
        """See `Rebuildable.where`."""
        return Where()

    async def move(self, job: Reindex, phase: Phase, note: str, share: FoundCounts) -> Reindex:
        """See `Rebuildable.move`."""
        moved = await self._ledger.move(job, phase, note=note, share=share)
        # PostgreSQL decides what serves; the alias only follows, for people and tools.
        with contextlib.suppress(UnavailableError):
            await self._texts.ensure()
        return moved

    async def clean(self, job: Reindex) -> None:
        """See `Rebuildable.clean`."""
        # The alias is updated first, because its target cannot be dropped.
        await self._texts.ensure()
        await self._texts.drop(job.other)
