"""Queries have priority over documents, with the real model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest

from strata.shared.context import background_work_of
from strata.shared.ids import new_id
from strata.shared.search.embedding import Embedder, query_priority
from strata.shared.search.embedding.base import Kind, WrappedEmbedder
from strata.shared.search.embedding.minilm import MiniLmEmbedder
from strata.shared.search.embedding.query_priority import QueriesFirst


class Recording(WrappedEmbedder):
    """An embedder that records its calls, in order."""

    def __init__(self, inner: Embedder) -> None:
        super().__init__(inner)
        self.log: list[str] = []

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        self.log += [kind] * len(texts)
        return await self._inner.embed(texts, kind)


async def test_a_query_waits_for_at_most_one_document(
    minilm: MiniLmEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine a query may take longer than a document waits.
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


class Counting(WrappedEmbedder):
    """An embedder that records how many texts it embeds concurrently."""

    def __init__(self, inner: Embedder) -> None:
        super().__init__(inner)
        self.now = 0
        self.most = 0

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        self.now += len(texts)
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= len(texts)
        return [[float(text)] for text in texts]


@pytest.mark.parametrize("documents_at_once", [1, 3])
async def test_as_many_documents_are_embedded_concurrently_as_the_model_can(
    minilm: MiniLmEmbedder, documents_at_once: int
) -> None:
    counting = Counting(minilm)
    polite = QueriesFirst(counting, documents_at_once)
    calls = [polite.embed([f"{start + n}" for n in range(10)], "document") for start in (0, 10)]
    vectors = await asyncio.gather(*calls)
    assert [value for call in vectors for [value] in call] == list(map(float, range(20)))
    assert counting.most == documents_at_once


async def test_documents_are_embedded_one_at_a_time_while_other_work_needs_the_cores(
    minilm: MiniLmEmbedder,
) -> None:
    counting, wanted = Counting(minilm), True
    polite = QueriesFirst(counting, 3, lambda: wanted)
    texts = [f"{number}" for number in range(10)]
    assert len(await polite.embed(texts, "document")) == 10
    assert counting.most == 1
    await polite.embed(texts[:8], "document")
    assert counting.most == 3, "few messages, like those of a turn"


async def test_documents_are_embedded_concurrently_again_once_the_cores_are_free(
    minilm: MiniLmEmbedder,
) -> None:
    counting, wanted = Counting(minilm), True
    polite = QueriesFirst(counting, 3, lambda: wanted)
    await polite.embed([f"{number}" for number in range(10)], "document")
    assert counting.most == 1
    wanted = False
    await polite.embed([f"{number}" for number in range(10)], "document")
    assert counting.most == 3


class Ordering(WrappedEmbedder):
    """An embedder that records the order of the texts."""

    def __init__(self, inner: Embedder) -> None:
        super().__init__(inner)
        self.order: list[str] = []

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        self.order += texts
        await asyncio.sleep(0)
        return [[0.0] for _ in texts]


@pytest.mark.parametrize("kind", ["query", "document"])
async def test_the_texts_of_a_project_do_not_wait_for_those_of_another_one(
    minilm: MiniLmEmbedder, kind: Kind
) -> None:
    ordering = Ordering(minilm)
    polite = QueriesFirst(ordering)

    async def embed(project_id: str, count: int) -> None:
        with background_work_of(project_id):
            await polite.embed([f"{project_id} {number}" for number in range(count)], kind)

    flood = asyncio.create_task(embed("project-busy", 50))
    while not ordering.order:
        await asyncio.sleep(0)
    await embed("project-quiet", 1)
    assert ordering.order.index("project-quiet 0") <= 4
    await flood
    assert len(ordering.order) == 51
