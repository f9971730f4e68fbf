"""Priority of queries over documents for an embedding model on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

from strata.shared.fair_slots import FairSlots
from strata.shared.foreground_work import ForegroundWork
from strata.shared.search.embedding.base import Embedder, Kind, WrappedEmbedder

# How long documents pause after a query: the rest of a search takes as long and needs the same
# processors.
_GIVE_WAY_S = 0.03
# The longest such pause: under a constant load of queries, indexing slows down but continues.
_LONGEST_S = 0.2
# Number of documents that are embedded concurrently even while queries wait: the messages of a turn
# would still be embedded during the next one otherwise. An import has more at a time.
_FEW = 8
# Queries in the model at once: one is embedded, and one is ready for its thread.
_QUERIES_AT_ONCE = 2
# Interval at which a document that leaves its core to other work checks whether that has ended.
_CHECK_S = 0.02


def _never() -> bool:
    return False


class QueriesFirst(WrappedEmbedder):
    """An embedder that holds back documents while queries arrive for the wrapped embedder.

    Many documents take minutes. A query competes with as many documents as are embedded
    concurrently, and not with a whole batch. Projects take turns, with queries and with documents:
    a query waits for two queries of other projects at most, however many those have. Do not use it
    for a remote model, for which batches are better.

    Args:
        inner: The embedder.
        documents_at_once: Documents to embed concurrently.
        cores_wanted: Returns whether other work needs the cores of all documents but one; then one
            document at a time is embedded, unless there are only a few.
    """

    def __init__(
        self,
        inner: Embedder,
        documents_at_once: int = 1,
        cores_wanted: Callable[[], bool] = _never,
    ) -> None:
        super().__init__(inner)
        self._cores_wanted = cores_wanted
        self._embedding = 0
        self._unfinished = 0
        # No limit of waiters: load was shed where the call was accepted. A project that is alone
        # may have all slots: another one waits for a single document.
        self._documents = FairSlots(
            documents_at_once, "texts to embed", share=1.0, queue=sys.maxsize
        )
        self._queries = FairSlots(
            _QUERIES_AT_ONCE, "queries to embed", share=1.0, queue=sys.maxsize
        )
        self._asking = ForegroundWork(_GIVE_WAY_S, _LONGEST_S)

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        """See `Embedder.embed`."""
        if kind == "query":
            return await self._ask(texts)
        # One text per slot, so that one project's documents do not block another project.
        self._unfinished += len(texts)
        try:
            return await asyncio.gather(*map(self._embed_document, texts))
        finally:
            self._unfinished -= len(texts)

    async def _embed_document(self, text: str) -> list[float]:
        async with self._documents.slot():
            await self._asking.give_way()
            while self._leaves_its_core():  # noqa: ASYNC110 - to work of other processes
                await asyncio.sleep(_CHECK_S)
            self._embedding += 1
            try:
                [vector] = await self._inner.embed([text], "document")
            finally:
                self._embedding -= 1
            return vector

    def _leaves_its_core(self) -> bool:
        return self._embedding > 0 and self._unfinished > _FEW and self._cores_wanted()

    async def _ask(self, texts: Sequence[str]) -> list[list[float]]:
        with self._asking:
            # One text per slot, as for documents.
            return await asyncio.gather(*map(self._embed_query, texts))

    async def _embed_query(self, text: str) -> list[float]:
        async with self._queries.slot():
            [vector] = await self._inner.embed([text], "query")
            return vector
