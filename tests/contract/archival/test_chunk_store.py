"""The contract of `FileChunkStore` and of the indexer's queue, on PostgreSQL."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from archival_stores import Stores, new_chunks
from callers import as_project
from strata.archival.domain.chunks import FileChunk, SetState
from strata.archival.store import ChunkQueue
from strata.archival.store import chunks as chunk_store
from strata.protocol.errors import AbortedError
from strata.shared import context
from strata.shared.db import sql
from strata.shared.ids import new_id


async def search_texts(stores: Stores, folder: str, words: str) -> list[str]:
    by_words = await stores.chunks.by_words(words, [folder], 100)
    return [stored.chunk.text for stored, _ in by_words]


async def sets(stores: Stores) -> list[str]:
    async with stores.database.transaction(read_only=True) as connection:
        rows = await connection.execute(sql("SELECT state FROM archival.chunk_sets ORDER BY id"))
        return [row.state for row in rows]


async def chunks_left(stores: Stores) -> int:
    async with stores.database.transaction(read_only=True) as connection:
        rows = await connection.execute(sql("SELECT count(*) AS n FROM archival.file_chunks"))
        return int(rows.one().n)


async def test_a_file_is_found_only_when_all_its_chunks_are_stored(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    set_id = await stores.chunks.begin(folder, file)
    await stores.chunks.add(set_id, new_chunks("apples are red"))
    assert await search_texts(stores, folder, "apples") == []
    assert await stores.progress(file) is None
    await stores.chunks.serve(set_id, 1, "one")
    assert await search_texts(stores, folder, "apples") == ["apples are red"]
    assert await stores.progress(file) == (0, 1)


async def test_a_chunk_is_found_by_its_heading_and_returned_with_it(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    chunk = FileChunk(0, "We stayed for a week.", 5, 6, "travel.md\nIceland")
    set_id = await stores.chunks.begin(folder, file)
    await stores.chunks.add(set_id, [chunk])
    await stores.chunks.serve(set_id, 1, "one")
    for words in ("Iceland", "stayed"):
        [(stored, _)] = await stores.chunks.by_words(words, [folder], 10)
        assert stored.chunk == chunk
    async with stores.queue.claim() as queued:
        assert queued is not None
        batch = await stores.queue.next(queued, 1)
    assert batch is not None
    assert list(batch.chunks) == [chunk]


async def test_the_previous_chunks_are_found_until_the_new_ones_serve(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    await stores.index_file(folder, file, "the old plan", "another old plan")
    new = await stores.chunks.begin(folder, file)
    await stores.chunks.add(new, new_chunks("the new plan"))
    assert sorted(await search_texts(stores, folder, "plan")) == [
        "another old plan",
        "the old plan",
    ]
    await stores.chunks.serve(new, 1, "new")
    assert await search_texts(stores, folder, "plan") == ["the new plan"]
    assert await chunks_left(stores) == 1


async def test_the_same_content_again_keeps_its_index(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    first = await stores.index_file(folder, file, "one", "two", digest="same")
    async with stores.queue.claim() as queued:
        assert queued is not None
        batch = await stores.queue.next(queued, 1)
        assert batch is not None
        await stores.queue.indexed(queued, batch)
    assert await stores.progress(file) == (1, 2)
    second = await stores.index_file(folder, file, "one", "two", digest="same")
    assert second != first
    assert await stores.progress(file) == (1, 2)
    assert await sets(stores) == [SetState.SERVING, SetState.DROPPED]
    await stores.index_file(new_id("folder"), file, "one", "two", digest="same")
    assert await stores.progress(file) == (0, 2)
    assert await search_texts(stores, folder, "one") == []


async def test_concurrent_chunk_sets_of_one_file_leave_one_that_serves(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    await asyncio.gather(
        *(stores.index_file(folder, file, f"plan number {number}") for number in range(8))
    )
    assert len(await search_texts(stores, folder, "plan")) == 1
    assert sorted(await sets(stores)) == [SetState.DROPPED] * 7 + [SetState.SERVING]
    assert await chunks_left(stores) == 1


async def test_chunks_of_a_file_that_was_dropped_during_indexing_are_refused(
    stores: Stores,
) -> None:
    folder, file = new_id("folder"), new_id("file")
    early, late = [await stores.chunks.begin(folder, file) for _ in range(2)]
    await stores.chunks.add(late, new_chunks("half of it"))
    assert await stores.chunks.drop([file], []) == 1
    with pytest.raises(AbortedError):
        await stores.chunks.add(early, new_chunks("too late"))
    with pytest.raises(AbortedError):
        await stores.chunks.serve(late, 1, "late")
    assert await chunks_left(stores) == 0
    assert await stores.progress(file) is None


@pytest.mark.parametrize("count", [4, 5])
async def test_many_files_are_dropped_in_several_transactions(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(chunk_store, "_DROPPED_AT_ONCE", 2)
    folder = new_id("folder")
    for _ in range(count):
        await stores.index_file(folder, new_id("file"), "one word")
    before = stores.database.statistics.commits
    assert await stores.chunks.drop([], [folder]) == count
    assert stores.database.statistics.commits - before == 3
    assert await sets(stores) == [SetState.DROPPED] * count
    assert await chunks_left(stores) == 0


async def test_dropping_removes_the_named_files_and_folders_only(stores: Stores) -> None:
    here, there = new_id("folder"), new_id("folder")
    files = [new_id("file") for _ in range(4)]
    for folder, file in zip((here, here, there, there), files, strict=True):
        await stores.index_file(folder, file, "one word", "two words")
    assert await stores.chunks.drop([files[2], new_id("file")], [here]) == 6
    assert await stores.chunks.drop([files[2]], [here]) == 0
    left = await stores.chunks.progress(files)
    assert [item.file_id for item in left] == [files[3]]
    assert await search_texts(stores, here, "word") == []


async def test_storing_chunks_costs_one_statement_for_each_batch(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    statistics = stores.database.statistics
    before = statistics.statements
    set_id = await stores.chunks.begin(folder, file)
    chunks = new_chunks(*(f"line {number} of the long file" for number in range(5_000)))
    for start in range(0, 5_000, 500):
        await stores.chunks.add(set_id, chunks[start : start + 500])
    await stores.chunks.serve(set_id, 5_000, "long")
    assert statistics.statements - before == 1 + 10 + 4
    assert await stores.progress(file) == (0, 5_000)


async def test_reading_the_progress_reads_no_chunks(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    await stores.index_file(folder, file, "one")
    with stores.database.statistics.record() as recorded:
        await stores.chunks.progress([file])
    (statement,) = recorded
    assert "file_chunks" not in statement


async def test_replicas_take_different_files(stores: Stores) -> None:
    folder = new_id("folder")
    await stores.index_file(folder, new_id("file"), "one")
    await stores.index_file(folder, new_id("file"), "two")
    other = ChunkQueue(stores.database, stores.worker)
    async with stores.queue.claim() as mine, other.claim() as theirs:
        assert mine is not None
        assert theirs is not None
        assert mine.id != theirs.id
    async with stores.queue.claim() as again:
        assert again == mine


async def test_the_longest_waiting_file_is_next(stores: Stores) -> None:
    folder = new_id("folder")
    names = {await stores.index_file(folder, new_id("file"), "a", "b"): n for n in range(3)}
    order = []
    for _ in range(6):
        async with stores.queue.claim() as queued:
            assert queued is not None
            order.append(names[queued.id])
            batch = await stores.queue.next(queued, 1)
            assert batch is not None
            await stores.queue.indexed(queued, batch)
    assert order == [0, 1, 2, 0, 1, 2]
    async with stores.queue.claim() as queued:
        assert queued is None


async def test_abandoned_upload_is_dropped(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    set_id = await stores.chunks.begin(folder, file)
    await stores.chunks.add(set_id, new_chunks("half"))
    async with stores.queue.claim() as queued:
        assert queued is None
    impatient = ChunkQueue(stores.database, stores.worker, timedelta(0))
    async with impatient.claim() as queued:
        assert queued is not None
        assert queued.state is SetState.STAGED
        await impatient.abandon(queued)
        await impatient.delete_dropped(queued)
    assert await sets(stores) == []
    assert await chunks_left(stores) == 0


async def test_a_rebuilt_index_waits_for_every_chunk(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    await stores.index_file(folder, file, "one", "two")
    async with stores.queue.claim() as queued:
        assert queued is not None
        first = await stores.queue.next(queued, 1)
        assert first is not None
        await stores.queue.indexed(queued, first)
        second = await stores.queue.next(queued, 1)
        assert second is not None
        assert await stores.queue.index_all_again() == 1
        # Written into the index that is gone: it must not count.
        await stores.queue.indexed(queued, second)
    assert await stores.progress(file) == (0, 2)


async def test_another_project_can_neither_read_nor_drop_nor_find_chunks(stores: Stores) -> None:
    folder, file = new_id("folder"), new_id("file")
    set_id = await stores.index_file(folder, file, "the secret plan")
    staged = await stores.chunks.begin(folder, file)
    with context.use(as_project()):
        assert await stores.progress(file) is None
        assert await search_texts(stores, folder, "plan") == []
        async with stores.chunks.open_snapshot("plan", [folder], 100) as snapshot:
            assert not await snapshot.by_ids([f"{set_id}/0"])
        assert await stores.chunks.drop([file], [folder]) == 0
        with pytest.raises(AbortedError):
            await stores.chunks.add(staged, new_chunks("forged"))
        # The same ids are another file there.
        await stores.index_file(folder, file, "a plan of their own")
        assert await search_texts(stores, folder, "plan") == ["a plan of their own"]
    assert await search_texts(stores, folder, "plan") == ["the secret plan"]


async def test_files_do_not_count_as_archives_or_passages(stores: Stores) -> None:
    agent = new_id("agent")
    await stores.insert(agent, "a passage", tags=("t",))
    await stores.index_file(new_id("folder"), new_id("file"), "a chunk", "a chunk more")
    assert len(await stores.archives.page("", 10, None)) == 1
    assert (await stores.archives.stats(agent)).passage_count == 1
    assert await stores.archives.tags("", agent) == {"t": 1}
