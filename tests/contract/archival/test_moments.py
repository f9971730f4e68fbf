"""Searches during indexing: the snapshot includes what the index does not have yet."""

from __future__ import annotations

from typing import Any

from archival_stores import Stores, new_chunks
from strata.archival.domain.passages import Filter
from strata.archival.migrations import MIGRATIONS
from strata.shared.context import current_project
from strata.shared.ids import new_id


async def test_a_passage_indexed_after_the_snapshot_is_still_found_by_its_words(
    databases: Any,
) -> None:
    """The index may have been searched before it contained the passage."""
    urls = await databases.of(MIGRATIONS)
    stores = Stores.opened(urls)
    [stored] = await stores.insert(new_id("agent"), "The boat is blue.")
    passage, within = stored.passage, Filter((stored.passage.archive_id,))

    async with stores.passages.open_snapshot("boat", within, 5) as snapshot:
        other = Stores.opened(urls)
        await other.pending.done(current_project(), [passage])
        await other.close()
        assert [match.id for match, _ in await snapshot.waiting()] == [passage.id]
    async with stores.passages.open_snapshot("boat", within, 5) as snapshot:
        assert not await snapshot.waiting()
    await stores.close()


async def test_a_chunk_indexed_after_the_snapshot_is_still_found_by_its_words(
    databases: Any,
) -> None:
    urls = await databases.of(MIGRATIONS)
    stores = Stores.opened(urls)
    folder = new_id("folder")
    set_id = await stores.chunks.begin(folder, new_id("file"))
    await stores.chunks.add(set_id, new_chunks("The boat is blue."))
    await stores.chunks.serve(set_id, 1, set_id)

    async with stores.chunks.open_snapshot("boat", [folder], 5) as snapshot:
        other = Stores.opened(urls)
        async with other.queue.claim() as queued:
            assert queued is not None
            batch = await other.queue.next(queued, 5)
            assert batch is not None
            await other.queue.indexed(queued, batch)
        await other.close()
        assert [match.chunk.text for match, _ in await snapshot.waiting()] == ["The boat is blue."]
    async with stores.chunks.open_snapshot("boat", [folder], 5) as snapshot:
        assert not await snapshot.waiting()
    await stores.close()
