"""Priority of queries over documents for an embedding model on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from strata.shared.fair_slots import FairSlots
from strata.shared.search.embedding.base import Embedder, Kind, WrappedEmbedder

# How long documents pause after a query: the rest of a search takes as long and needs the same
# processors.
_GIVE_WAY_S = 0.03
# The longest such pause: under a constant load of queries, indexing slows down but continues.
_LONGEST_S = 0.2


class QueriesFirst(WrappedEmbedder):
    """An embedder that holds back documents while queries arrive for the wrapped embedder.

    A local model processes one text at a time, and many documents take minutes. A query waits for
    one document at most, and not for a whole batch. Do not use it for a remote model, for which
    batches are better.
    """

    def __init__(self, inner: Embedder) -> None:
        super().__init__(inner)
        # No limit of waiters: load was shed where the call was accepted.
        self._documents = FairSlots(1, "texts to embed", queue=sys.maxsize)
        self._asking = 0
        self._quiet_from = 0.0
        self._answered = asyncio.Event()
        self._answered.set()

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        """See `Embedder.embed`."""
        if kind == "query":
            return await self._ask(texts)
        vectors = []
        for text in texts:
            # One text at a time, so that one project's documents do not block another project.
            async with self._documents.slot():
                await self._give_way()
                vectors += await self._inner.embed([text], kind)
        return vectors

    async def _ask(self, texts: Sequence[str]) -> list[list[float]]:
        self._asking += 1
        self._answered.clear()
        try:
            return await self._inner.embed(texts, "query")
        finally:
            self._asking -= 1
            self._quiet_from = asyncio.get_running_loop().time() + _GIVE_WAY_S
            if not self._asking:
                self._answered.set()

    async def _give_way(self) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() + _LONGEST_S
        while (now := loop.time()) < latest:
            try:
                async with asyncio.timeout_at(latest):
                    await self._answered.wait()
            except TimeoutError:
                return
            if self._quiet_from <= now:
                return
            await asyncio.sleep(min(self._quiet_from, latest) - now)
