"""The generations of a collection that are searched and written, as stored in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.indexing.generations import Serving, first_generation, slot_of
from strata.shared.search.reindexing.ledger import Ledger
from strata.shared.search.vectors.index import Collection

# Until its cache expires, a reader may search the old generation after a switch. That is safe,
# because the old one is written for much longer.
_REMEMBERED_S = 2.0


class StoredRoutes:
    """Routes as stored in PostgreSQL; by default the generation of the default model.

    Args:
        ledger: The stored generations and rebuilds.
        collection: The collection.
        models: The configured models.
    """

    def __init__(self, ledger: Ledger, collection: Collection, models: EmbeddingModels) -> None:
        self._ledger = ledger
        self._slot = slot_of(collection)
        self._first = first_generation(collection, models)
        self._cached: Serving | None = None
        self._until = 0.0
        self._asking = asyncio.Lock()

    async def serving(self, *, fresh: bool = False) -> Serving:
        """See `Routes.serving`."""
        if not fresh and (known := self._remembered()):
            return known
        # Concurrent searches share one query.
        async with self._asking:
            if not fresh and (known := self._remembered()):
                return known
            self._cached = await self._ledger.serving(self._slot) or self._first
            self._until = asyncio.get_running_loop().time() + _REMEMBERED_S
            return self._cached

    def _remembered(self) -> Serving | None:
        return self._cached if asyncio.get_running_loop().time() < self._until else None

    async def written(self) -> Sequence[Serving]:
        """See `Routes.written`."""
        return await self._ledger.written(self._slot) or [await self._ledger.keep(self._first)]


class GenerationsByModel:
    """The generations of a collection that has one for each model.

    Args:
        ledger: The stored generations.
        collection: The collection.
    """

    def __init__(self, ledger: Ledger, collection: Collection) -> None:
        self._ledger = ledger
        self._prefix = f"{collection.name}:"
        self._cached: list[Serving] = []
        self._until = 0.0

    async def all(self, *, fresh: bool = False) -> Sequence[Serving]:
        """Returns all generations; ``fresh`` bypasses the cache."""
        now = asyncio.get_running_loop().time()
        if fresh or now >= self._until:
            self._cached = await self._ledger.slots(self._prefix)
            self._until = now + _REMEMBERED_S
        return self._cached

    async def knows(self, generation: Serving) -> bool:
        """Returns whether a generation is known."""
        return generation in self._cached or generation in await self.all(fresh=True)

    async def add(self, generation: Serving) -> None:
        """Adds a generation."""
        await self._ledger.keep(generation)
        self._until = 0.0
