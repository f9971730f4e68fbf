"""The search of tools makes vectors of tools within a time limit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from strata.shared.db import Database
from strata.shared.search.embedding import Kind
from strata.tool_execution.registry import search as tool_search
from strata.tool_execution.registry.search import ToolSearch
from strata.tool_execution.store import PostgresToolStore
from tool_records import NOTHING, custom


class SameVectors:
    """A model that finds all texts alike; it counts the documents."""

    model_id = "same"
    dim = 2
    max_tokens = 512
    normalized = True

    def __init__(self) -> None:
        self.documents = 0

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        if kind == "document":
            self.documents += len(texts)
        return [[1.0, 0.0] for _ in texts]

    def known_share(self, text: str) -> float:
        return 1.0

    def limit_tokens(self, text: str) -> int:
        return self.count_tokens(text)

    def count_tokens(self, text: str) -> int:
        return len(text)


async def test_a_search_without_time_for_all_vectors_keeps_some_and_the_next_one_continues(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_search, "_LONGEST_S", 0.0)
    store, model = PostgresToolStore(database), SameVectors()
    for number in range(40):
        await store.upsert(custom(f"tool_{number}"), NOTHING)

    async def load() -> SameVectors:
        return model

    search = ToolSearch(store, {}, load)
    matches, documents = [], []
    for _ in range(4):
        matches.append(len(await search.search("compass", 100)))
        documents.append(model.documents)
    # No tool has the word of the query: those with vectors are found.
    assert matches == documents == [16, 32, 40, 40]
    assert [match.tool.name for match in await search.search("tool 7", 1)] == ["tool_7"]
    # A replica finds the vectors that another one has stored.
    assert len(await ToolSearch(store, {}, load).search("compass", 100)) == 40
    assert model.documents == 40
