"""The search of tools embeds tools within a time limit, and built-in tools never."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from embedder_doubles import EmbedderDouble
from polling import eventually
from strata.shared.db import Database
from strata.shared.search.embedding import Kind
from strata.shared.search.embedding.base import ENGLISH_MODEL
from strata.shared.search.embedding.minilm import MiniLmEmbedder
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.registry import search as tool_search
from strata.tool_execution.registry.builtin_vectors import packaged_vectors
from strata.tool_execution.registry.search import ToolSearch, embedded_text, text_hash
from strata.tool_execution.store import PostgresToolStore
from tool_records import NOTHING, custom


async def test_a_search_without_time_for_all_vectors_stores_some_and_the_next_continues(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_search, "_LONGEST_S", 0.0)
    store, model = PostgresToolStore(database), EmbedderDouble()
    for number in range(40):
        await store.upsert(custom(f"tool_{number}"), NOTHING)

    async def load() -> EmbedderDouble:
        return model

    search = ToolSearch(store, {}, load)
    matches, documents = [], []
    for _ in range(4):
        matches.append(len(await search.search("compass", 100)))
        documents.append(len(model.texts_of("document")))
    # No tool contains the word of the query: the tools with vectors match, and all are alike.
    assert matches == documents == [16, 32, 40, 40]
    assert [match.tool.name for match in await search.search("tool 7", 1)] == ["tool_7"]
    # A replica finds the vectors that another one has stored.
    assert len(await ToolSearch(store, {}, load).search("compass", 100)) == 40
    assert len(model.texts_of("document")) == 40


class _GatedEmbedder(EmbedderDouble):
    """Embeds documents once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        vectors = await super().embed(texts, kind)
        if kind == "document":
            await self.gate.wait()
        return vectors


async def test_concurrent_first_searches_embed_each_tool_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, model = PostgresToolStore(database), _GatedEmbedder()
    for number in range(12):
        await store.upsert(custom(f"tool_{number}"), NOTHING)

    async def load() -> EmbedderDouble:
        return model

    waiting = 0
    embedded = ToolSearch._new_vectors

    async def count(*arguments: Any) -> dict[str, bytes]:
        nonlocal waiting
        waiting += 1
        return await embedded(*arguments)

    monkeypatch.setattr(ToolSearch, "_new_vectors", count)
    search = ToolSearch(store, {}, load)
    cancelled = asyncio.create_task(search.search("compass", 100))
    await eventually(lambda: waiting == 1)
    others = [asyncio.create_task(search.search("compass", 100)) for _ in range(5)]
    await eventually(lambda: waiting == 6)
    cancelled.cancel()
    model.gate.set()
    assert [len(matches) for matches in await asyncio.gather(*others)] == [12] * 5
    assert len(model.texts_of("document")) == 12


async def test_words_of_other_scripts_are_compared(database: Database) -> None:
    store = PostgresToolStore(database)
    await store.upsert(
        replace(custom("weather"), description="Показывает погоду, für Zürich."), NOTHING
    )
    search = ToolSearch(store, {})
    for query in ("погоду", "ZÜRICH"):
        assert [match.tool.name for match in await search.search(query, 1)] == ["weather"]
    assert not await search.search("город", 1)


async def test_tools_are_compared_beside_the_event_loop(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresToolStore(database)
    await store.upsert(custom("tool_1"), NOTHING)
    compared_on: set[int] = set()
    words_in = tool_search._words

    def note(text: str) -> list[str]:
        compared_on.add(threading.get_ident())
        return words_in(text)

    monkeypatch.setattr(tool_search, "_words", note)

    async def load() -> EmbedderDouble:
        return EmbedderDouble()

    search = ToolSearch(store, {}, load)
    # The first search makes the vectors, whose texts it needs.
    for _ in range(2):
        compared_on.clear()
        await search.search("tool", 10)
    assert compared_on
    assert threading.get_ident() not in compared_on


class _EnglishModel(EmbedderDouble):
    """The id of the English model."""

    model_id = ENGLISH_MODEL


async def test_search_of_the_built_in_tools_embeds_the_query_only(database: Database) -> None:
    model = _EnglishModel()

    async def load() -> EmbedderDouble:
        return model

    search = ToolSearch(PostgresToolStore(database), BUILTIN_TOOLS, load, packaged_vectors)
    await search.search("keep a fact", 10)
    assert model.texts_of("query") == ["keep a fact"]
    assert model.texts_of("document") == [], (
        "the text of a tool has changed:"
        " run python -m strata.tool_execution.registry.builtin_vectors"
    )


async def test_packaged_vectors_are_those_of_the_model() -> None:
    packaged = packaged_vectors()
    tools = list(BUILTIN_TOOLS.values())
    minilm = await MiniLmEmbedder.load()
    try:
        embeddings = await minilm.embed([embedded_text(tool) for tool in tools], "document")
    finally:
        await minilm.close()
    for tool, embedding in zip(tools, embeddings, strict=True):
        vector = packaged[text_hash(minilm.model_id, tool)]
        numbers = struct.unpack(f"<{minilm.dim}f", vector)
        # Processors with different instructions round differently.
        assert sum(a * b for a, b in zip(numbers, embedding, strict=True)) > 0.99
    assert len(packaged) == len(tools)
