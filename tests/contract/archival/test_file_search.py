"""Search in files over PostgreSQL, the real embedding model and the real engine."""

from __future__ import annotations

import asyncio
import os
import signal

from archival_stores import CHUNK_BATCH, Finder, new_chunks
from callers import as_project
from polling import eventually
from strata.archival.domain.chunks import FoundChunk
from strata.archival.search.index import FILE_CHUNKS
from strata.shared import context
from strata.shared.ids import new_id
from strata.shared.search.vectors import Where
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantIndex
from strata.standalone.vectors import EmbeddedVectors


def texts(hits: list[FoundChunk]) -> list[str]:
    return [item.stored.chunk.text for item in hits]


async def in_the_index(engine: EmbeddedVectors, where: Where | None = None) -> int:
    vectors = QdrantIndex(connect(engine.url, engine.api_key))
    try:
        return await vectors.count(FILE_CHUNKS, context.current_project(), where)
    finally:
        await vectors.close()


async def test_a_chunk_is_found_by_meaning_in_its_folder_only(finder: Finder) -> None:
    music, cars = new_id("folder"), new_id("folder")
    file = new_id("file")
    await finder.stores.index_file(music, file, "He plays the violin.", "She prefers silence.")
    await finder.stores.index_file(cars, new_id("file"), "The car is blue.")
    await finder.index_all()
    best = (await finder.find_chunks([music], "Which musical instrument does he know?"))[0].stored
    assert (best.file_id, best.chunk) == (file, new_chunks("He plays the violin.")[0])
    assert await finder.find_chunks([cars], "Where did he learn to play music?") == []
    assert texts(await finder.find_chunks([cars], "a blue vehicle")) == ["The car is blue."]
    both = await finder.find_chunks([music, cars], "the violin in the car", limit=2)
    assert len(both) == 2
    assert both[0].score > both[1].score


async def test_unindexed_items_are_found_by_their_words(finder: Finder) -> None:
    folder, file = new_id("folder"), new_id("file")
    lines = [f"Paragraph {number} is about the harbour." for number in range(CHUNK_BATCH + 1)]
    await finder.stores.index_file(folder, file, *lines, "The password is tulip-42.")
    assert texts(await finder.find_chunks([folder], "what is the password")) == [
        "The password is tulip-42."
    ]
    await finder.indexer.index_pending()
    assert await finder.stores.progress(file) == (CHUNK_BATCH, CHUNK_BATCH + 2)
    assert "The password is tulip-42." in texts(
        await finder.find_chunks([folder], "what is the password")
    )
    await finder.index_all()
    assert await finder.stores.progress(file) == (CHUNK_BATCH + 2, CHUNK_BATCH + 2)
    assert texts(await finder.find_chunks([folder], "secret word to log in"))[0].startswith("The p")


async def test_a_replaced_file_is_found_by_its_new_text_only(
    finder: Finder, engine: EmbeddedVectors
) -> None:
    folder, file = new_id("folder"), new_id("file")
    await finder.stores.index_file(folder, file, "Lunch is at noon.", "Dinner is at seven.")
    await finder.index_all()
    await finder.stores.index_file(folder, file, "Lunch is at one.")
    # The index still has the former text; PostgreSQL has the last word.
    assert texts(await finder.find_chunks([folder], "when is lunch")) == ["Lunch is at one."]
    await finder.index_all()
    assert texts(await finder.find_chunks([folder], "when do we eat")) == ["Lunch is at one."]
    assert await in_the_index(engine) == 1


async def test_chunks_of_dropped_files_do_not_hide_others_while_further_files_wait(
    finder: Finder, engine: EmbeddedVectors
) -> None:
    folder, dropped = new_id("folder"), [new_id("file") for _ in range(3)]
    for file in dropped:
        lines = (f"The walrus colony number {number} eats clams." for number in range(20))
        await finder.stores.index_file(folder, file, *lines)
    await finder.stores.index_file(folder, new_id("file"), "A walrus was seen near the harbour.")
    await finder.index_all()
    for number in range(5):
        await finder.stores.index_file(folder, new_id("file"), f"Train {number} leaves at noon.")
    await finder.stores.chunks.drop(dropped, [])
    # One step, which removes the dropped files and embeds a part of one that waits.
    assert await finder.indexer.index_pending()
    assert texts(await finder.find_chunks([folder], "walrus colony")) == [
        "A walrus was seen near the harbour."
    ]
    assert await in_the_index(engine) == 2


async def test_passages_and_files_are_indexed_in_turn(finder: Finder) -> None:
    agent, file = new_id("agent"), new_id("file")
    await finder.stores.index_file(new_id("folder"), file, *("word " * n for n in range(1, 10)))
    # More than a batch of 64.
    await finder.stores.insert(agent, *(f"Note {number}." for number in range(70)))
    assert await finder.indexer.index_pending()
    assert await finder.stores.progress(file) == (CHUNK_BATCH, 9)
    pending = (await finder.stores.pending.find(100)).ids
    assert sum(len(ids) for ids in pending.values()) == 6


async def test_a_file_dropped_while_it_is_indexed_is_removed_from_the_index(
    finder: Finder, engine: EmbeddedVectors
) -> None:
    folder, file, kept = new_id("folder"), new_id("file"), new_id("file")
    await finder.stores.index_file(folder, file, *(f"secret {number}" for number in range(9)))
    await finder.stores.index_file(folder, kept, "to be kept")
    running = asyncio.create_task(finder.indexer.run())
    try:
        await eventually(lambda: _begun(finder, file))
        assert await finder.stores.chunks.drop([file], []) == 9
        assert texts(await finder.find_chunks([folder], "secret")) in ([], ["to be kept"])

        async def idle() -> bool:
            return await in_the_index(engine) == 1 and await finder.stores.progress(kept) == (1, 1)

        await eventually(idle)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert texts(await finder.find_chunks([folder], "secret")) == []
    assert texts(await finder.find_chunks([folder], "kept")) == ["to be kept"]


async def test_a_file_dropped_between_write_and_commit_is_removed_from_the_index(
    finder: Finder, engine: EmbeddedVectors
) -> None:
    folder, file = new_id("folder"), new_id("file")
    set_id = await finder.stores.index_file(folder, file, "one", "two")
    async with finder.stores.queue.claim() as queued:
        assert queued is not None
        batch = await finder.stores.queue.next(queued, 2)
        assert batch is not None
        await finder.stores.chunks.drop([], [folder])
        # Another replica must not forget the set before this one has written it.
        assert await finder.indexer.index_pending() is False
        await finder.chunk_index.write(context.current_project(), batch)
        await finder.stores.queue.indexed(queued, batch)
    assert await in_the_index(engine, Where(eq={"set_id": set_id})) == 2
    await finder.index_all()
    assert await in_the_index(engine) == 0


async def test_chunks_below_the_floor_are_counted_on_request(finder: Finder) -> None:
    folder = new_id("folder")
    await finder.stores.index_file(
        folder, new_id("file"), "The car is blue.", "The recipe needs four eggs."
    )
    await finder.index_all()
    plain = await finder.chunk_search.search([folder], "tungsten", 5)
    assert (plain.hits, plain.below_floor) == ((), 0)
    counted = await finder.chunk_search.search([folder], "tungsten", 5, explain=True)
    assert (counted.hits, counted.below_floor) == ((), 2)
    some = await finder.chunk_search.search([folder], "which colour is the car", 5, explain=True)
    assert [hit.stored.chunk.text for hit in some.hits] == ["The car is blue."]
    assert some.below_floor == 1


async def test_another_projects_files_are_never_found(finder: Finder) -> None:
    folder = new_id("folder")
    await finder.stores.index_file(folder, new_id("file"), "the launch code is 1234")
    await finder.index_all()
    with context.use(as_project()):
        assert await finder.find_chunks([folder], "launch code") == []
        await finder.stores.index_file(folder, new_id("file"), "a code of honour")
        await finder.index_all()
        assert texts(await finder.find_chunks([folder], "launch code")) == ["a code of honour"]


async def test_without_the_engine_full_text_search_answers_and_indexing_resumes_later(
    mortal_finder: Finder,
    mortal_engine: EmbeddedVectors,
) -> None:
    folder, file = new_id("folder"), new_id("file")
    await mortal_finder.stores.index_file(
        folder, file, *(f"The cat number {n}." for n in range(10))
    )
    await mortal_finder.indexer.index_pending()
    assert mortal_engine.pid is not None
    os.kill(mortal_engine.pid, signal.SIGKILL)
    assert len(await mortal_finder.find_chunks([folder], "cat", limit=50)) == 10
    running = asyncio.create_task(mortal_finder.indexer.run())
    try:

        async def complete() -> bool:
            return await mortal_finder.stores.progress(file) == (10, 10)

        await eventually(complete)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert await in_the_index(mortal_engine) == 10


async def test_a_dropped_collection_is_rebuilt(finder: Finder, engine: EmbeddedVectors) -> None:
    folder, file = new_id("folder"), new_id("file")
    await finder.stores.index_file(folder, file, "The river is called Spree.")
    await finder.index_all()
    client = connect(engine.url, engine.api_key)
    for name in await client.collection_names():
        if name.startswith("file-chunks"):
            await client.delete_collection(name)
    await client.close()
    assert texts(await finder.find_chunks([folder], "river")) == ["The river is called Spree."]
    assert await finder.find_chunks([folder], "stream of water") == []
    running = asyncio.create_task(finder.indexer.run())
    try:
        await eventually(lambda: _finds(finder, folder, "stream of water"))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _finds(world: Finder, folder: str, query: str) -> bool:
    return bool(await world.find_chunks([folder], query))


async def _begun(world: Finder, file: str) -> bool:
    progress = await world.stores.progress(file)
    return progress is not None and progress[0] > 0
