"""The search of tools embeds tools within a time limit."""

from __future__ import annotations

import threading

import pytest

from embedder_doubles import EmbedderDouble
from strata.shared.db import Database
from strata.tool_execution.registry import search as tool_search
from strata.tool_execution.registry.search import ToolSearch
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
