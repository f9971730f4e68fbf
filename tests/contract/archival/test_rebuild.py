"""Passages are marked as pending before an empty collection is searched."""

from __future__ import annotations

import pytest

from archival_stores import Finder
from strata.archival.search.backlogs import ChunkBacklog, PassageBacklog
from strata.archival.search.index import ChunkIndex, PassageIndex
from strata.protocol.errors import UnavailableError
from strata.shared.ids import new_id
from strata.shared.metric_names import INDEX_LAG_SECONDS, INDEX_WAITING
from strata.shared.search.indexing.indexer import Backlog
from strata.shared.search.qdrant_wire import common
from strata.shared.search.vectors.client import connect
from strata.shared.telemetry import Telemetry
from strata.standalone.vectors import EmbeddedVectors


class Watched:
    """An index that records the number of pending texts at the creation of its collection."""

    def __init__(self, index: PassageIndex | ChunkIndex, finder: Finder, file: str) -> None:
        self._index = index
        self._finder = finder
        self._file = file
        self.waiting: list[int] = []
        self.is_missing = index.is_missing
        self.is_empty = index.is_empty

    async def ensure(self) -> None:
        passages = (await self._finder.stores.pending.find(10)).ids
        indexed, count = await self._finder.stores.progress(self._file) or (0, 0)
        self.waiting.append(sum(map(len, passages.values())) + count - indexed)
        await self._index.ensure()


async def test_all_passages_are_marked_as_pending_before_the_collection_is_created(
    finder: Finder,
    engine: EmbeddedVectors,
) -> None:
    file = new_id("file")
    await finder.stores.insert(new_id("agent"), "a passage")
    await finder.stores.index_file(new_id("folder"), file, "a chunk")
    await finder.index_all()
    client = connect(engine.url, engine.api_key)
    for name in await client.collection_names():
        await client.delete_collection(name)
    await client.close()
    passages = Watched(finder.index, finder, file)
    chunks = Watched(finder.chunk_index, finder, file)
    await PassageBacklog(finder.stores.pending, passages, batch=1).ensure()  # type: ignore[arg-type]
    await ChunkBacklog(finder.stores.queue, chunks, batch=1).ensure()  # type: ignore[arg-type]
    assert (passages.waiting, chunks.waiting) == ([1], [2])


async def test_an_index_that_was_emptied_is_rebuilt_at_the_next_start(
    finder: Finder, engine: EmbeddedVectors
) -> None:
    """Such as after a restore of the database beside an engine with empty collections."""
    file = new_id("file")
    await finder.stores.insert(new_id("agent"), "a passage")
    await finder.stores.index_file(new_id("folder"), file, "a chunk")
    await finder.index_all()
    passages = Watched(finder.index, finder, file)
    chunks = Watched(finder.chunk_index, finder, file)

    async def start() -> None:
        await PassageBacklog(finder.stores.pending, passages, batch=1).ensure()  # type: ignore[arg-type]
        await ChunkBacklog(finder.stores.queue, chunks, batch=1).ensure()  # type: ignore[arg-type]

    await start()
    client = connect(engine.url, engine.api_key)
    for name in await client.collection_names():
        await client.delete(name, common.Filter())
    await client.close()
    await start()
    assert (passages.waiting, chunks.waiting) == ([0, 1], [0, 2])


async def test_lag_of_the_index_is_measured(
    finder: Finder,
) -> None:
    telemetry = Telemetry()
    backlogs = (
        PassageBacklog(finder.stores.pending, finder.index, batch=9, telemetry=telemetry),
        ChunkBacklog(finder.stores.queue, finder.chunk_index, batch=9, telemetry=telemetry),
    )

    async def lags() -> list[float]:
        for backlog in backlogs:
            await backlog.ensure()
        names = ("passages", "file-chunks")
        return [telemetry.gauge(INDEX_WAITING, collection=name).value for name in names]

    await finder.stores.insert(new_id("agent"), "one", "two")
    await finder.stores.index_file(new_id("folder"), new_id("file"), "a", "b", "c")
    assert await lags() == [2, 3]
    await finder.index_all()
    assert await lags() == [0, 0]
    assert telemetry.gauge(INDEX_LAG_SECONDS, collection="passages").value == 0


async def test_lag_of_the_index_is_measured_while_the_engine_is_away(
    mortal_finder: Finder, mortal_engine: EmbeddedVectors
) -> None:
    telemetry, stores = Telemetry(), mortal_finder.stores
    backlogs: dict[str, Backlog] = {
        "passages": PassageBacklog(
            stores.pending, mortal_finder.index, batch=9, telemetry=telemetry
        ),
        "file-chunks": ChunkBacklog(
            stores.queue, mortal_finder.chunk_index, batch=9, telemetry=telemetry
        ),
    }
    await mortal_engine.stop()
    await stores.insert(new_id("agent"), "one", "two")
    await stores.index_file(new_id("folder"), new_id("file"), "a", "b", "c")
    for backlog in backlogs.values():
        with pytest.raises(UnavailableError):
            await backlog.ensure()
    waiting = [telemetry.gauge(INDEX_WAITING, collection=name).value for name in backlogs]
    assert waiting == [2, 3]
