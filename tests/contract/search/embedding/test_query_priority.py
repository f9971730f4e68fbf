"""Questions go before documents, on the real model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest

from strata.shared.ids import new_id
from strata.shared.search.embedding import Embedder, query_priority
from strata.shared.search.embedding.base import Kind
from strata.shared.search.embedding.minilm import MiniLmEmbedder
from strata.shared.search.embedding.query_priority import QueriesFirst


class Recording:
    """An embedder that notes what it was asked, in order."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self.log: list[str] = []
        self.model_id, self.dim = inner.model_id, inner.dim
        self.max_tokens, self.normalized = inner.max_tokens, inner.normalized
        self.count_tokens = inner.count_tokens
        self.limit_tokens = inner.limit_tokens
        self.known_share = inner.known_share

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        self.log += [kind] * len(texts)
        return await self._inner.embed(texts, kind)


async def test_a_query_waits_for_one_document_at_most(
    minilm: MiniLmEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slow machine may take longer for a question than a document waits.
    monkeypatch.setattr(query_priority, "_LONGEST_S", 60.0)
    recording = Recording(minilm)
    polite = QueriesFirst(recording)
    texts = [f"document {number} {new_id('x')}" for number in range(40)]
    documents = asyncio.create_task(polite.embed(texts, "document"))
    while not recording.log:
        await asyncio.sleep(0)
    before = len(recording.log)
    await polite.embed([new_id("question")], "query")
    assert recording.log[before] == "query"
    assert recording.log[before:].count("document") == 0
    assert not documents.done()
    assert await documents == await minilm.embed(texts, "document")


async def test_documents_make_progress_under_constant_queries(minilm: MiniLmEmbedder) -> None:
    recording = Recording(minilm)
    polite = QueriesFirst(recording)

    async def ask_on(numbers: count[int]) -> None:
        for number in numbers:
            await polite.embed([f"question {number}"], "query")

    asking = [asyncio.create_task(ask_on(count(start, 2))) for start in range(2)]
    try:
        async with asyncio.timeout(60):
            texts = [f"document {number} {new_id('x')}" for number in range(5)]
            assert len(await polite.embed(texts, "document")) == 5
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert recording.log.count("query") > 5
