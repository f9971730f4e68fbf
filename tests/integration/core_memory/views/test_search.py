"""Search of files by meaning: names, limits and messages, with an index in memory."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence
from typing import Any

import pytest

from strata.core_memory.files.domain.ports import Chunk, ChunkFindings, ChunkHit, IndexProgress
from strata.core_memory.files.domain.search import FileQuery
from strata.core_memory.files.search import FileSearch
from strata.protocol.errors import InvalidArgumentError, UnavailableError
from strata.shared.clock import SystemClock


class Index:
    """An index with a fixed answer that records the requests."""

    def __init__(self) -> None:
        self.hits: list[ChunkHit] = []
        self.below_floor = 0
        self.asked: list[tuple[Sequence[str], str, int]] = []

    async def search(
        self, folder_ids: Sequence[str], query: str, limit: int, *, explain: bool = False
    ) -> ChunkFindings:
        self.asked.append((folder_ids, query, limit))
        return ChunkFindings(self.hits[:limit], self.below_floor if explain else 0)

    async def index(
        self, project_id: str, folder_id: str, file_id: str, chunks: AsyncIterable[Sequence[Chunk]]
    ) -> int:
        raise UnavailableError("not part of this test")

    async def progress(
        self, project_id: str, file_ids: Sequence[str]
    ) -> Mapping[str, IndexProgress]:
        raise UnavailableError("not part of this test")

    async def drop(
        self, project_id: str, *, file_ids: Sequence[str] = (), folder_ids: Sequence[str] = ()
    ) -> None:
        raise UnavailableError("not part of this test")


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
def search(files: Any, index: Index) -> FileSearch:
    return FileSearch(files.window_store, index, SystemClock())


def hit(file_id: str, first: int, text: str, score: float = 1.0) -> ChunkHit:
    return ChunkHit(file_id, Chunk(0, text, first, first + text.count("\n")), score)


async def test_hits_have_file_names_and_are_ordered_by_score(
    files: Any, search: Any, index: Index
) -> None:
    folder, other = await files.seeds.folder("docs"), await files.seeds.folder("other")
    a = await files.seeds.file(folder, "a.md", "x")
    b = await files.seeds.file(folder, "b.md", "y")
    hidden = await files.seeds.file(other, "hidden.md", "z")
    await files.seeds.file(folder, "c.md", state="stored")
    agent = await files.seeds.agent(folder)
    index.hits = [hit(b, 3, "tea\nand milk", 0.9), hit(hidden, 1, "gone"), hit(a, 1, "coffee", 0.2)]
    result = await search.search(FileQuery(agent, "what to drink", 2))
    assert index.asked == [((folder,), "what to drink", 7)]
    assert [(hit.file_name, hit.start_line, hit.end_line) for hit in result.hits] == [
        ("docs/b.md", 3, 4),
        ("docs/a.md", 1, 1),
    ]
    assert result.unindexed_files == 1
    assert result.message == (
        "Found 2 passages in 2 files, best first\n"
        "Note: 1 file(s) are not fully indexed yet, so passages of them may be missing: "
        "grep_files finds them\n"
        f"{'=' * 80}\n"
        "\n"
        "=== docs/b.md (lines 3-4) ===\n"
        "tea\nand milk\n"
        "\n"
        "=== docs/a.md (lines 1-1) ===\n"
        "coffee"
    )


async def test_pieces_below_the_floor_are_counted_on_request(
    files: Any, search: Any, index: Index
) -> None:
    folder = await files.seeds.folder("docs")
    agent = await files.seeds.agent(folder)
    index.below_floor = 9
    assert (await search.search(FileQuery(agent, "tea"))).below_floor == 0
    assert (await search.search(FileQuery(agent, "tea", explain=True))).below_floor == 5
    assert (await search.search(FileQuery(agent, "tea", 7, explain=True))).below_floor == 7


async def test_default_limit_is_five_hits(files: Any, search: Any, index: Index) -> None:
    folder = await files.seeds.folder("docs")
    a = await files.seeds.file(folder, "a.md", "x")
    agent = await files.seeds.agent(folder)
    index.hits = [hit(a, number, "tea") for number in range(1, 61)]
    assert len((await search.search(FileQuery(agent, "tea"))).hits) == 5
    assert len((await search.search(FileQuery(agent, "tea", 50))).hits) == 50


async def test_the_message_names_the_pattern_if_nothing_is_found(
    files: Any, search: Any, index: Index
) -> None:
    folder = await files.seeds.folder("docs")
    none = await search.search(FileQuery(await files.seeds.agent(folder), "tea"))
    assert none.message == "No passages found for query: 'tea'"
    none = await search.search(FileQuery(await files.seeds.agent(), "tea"))
    assert none.message == "No files are currently attached to search"
    assert len(index.asked) == 1


@pytest.mark.parametrize(
    ("query", "limit", "message"),
    [
        (" ", 0, "Empty search query provided"),
        ("a" * 10_001, 0, "Query too long: 10001 characters (max 10000)"),
        ("a", 51, "limit must be from 1 to 50, got 51"),
        ("a", -1, "limit must be from 1 to 50, got -1"),
    ],
)
async def test_wrong_queries_are_explained(
    files: Any, search: Any, query: str, limit: int, message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await search.search(FileQuery(await files.seeds.agent(), query, limit))
    assert caught.value.message == message
