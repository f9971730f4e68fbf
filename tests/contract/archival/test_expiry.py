"""A time-to-live applies at once, and the worker destroys expired passages."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from archival_stores import Finder, Stores, archive, new_passage, new_text
from callers import as_project
from strata.archival.domain.history import Author, PassageChange
from strata.archival.domain.passages import ArchiveChange, ArchiveRef, Filter, Passage
from strata.archival.domain.search import Search
from strata.archival.store import Expiry, destruction
from strata.protocol.errors import DeadlineExceededError, InvalidArgumentError, NotFoundError
from strata.shared import context
from strata.shared.db import DatabaseConnection, sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

HOUR = 3600


def ago(minutes: float) -> datetime:
    return datetime.now(UTC) - timedelta(minutes=minutes)


async def aged(stores: Stores, name: str = "aged") -> tuple[str, Passage, Passage]:
    """Stores a passage of two hours ago and one of a minute ago in an archive."""
    agent = new_id("agent")
    await stores.archives.prepare(agent)
    made = await stores.archives.create(archive(name), agent, RequestKey())
    old, young = await stores.passages.insert(
        ArchiveRef(archive_id=made.id),
        [
            new_passage("the old boat", ("old", "both"), ago(120)),
            new_passage("the young boat", ("both",), ago(1)),
        ],
        archive("-"),
    )
    return agent, old.passage, young.passage


async def live(stores: Stores, passage: Passage, seconds: int) -> None:
    await stores.archives.update(
        passage.archive_id, ArchiveChange(time_to_live=seconds), datetime.now(UTC)
    )


def expiry(stores: Stores, batch: int = 10) -> tuple[Expiry, list[None]]:
    woken: list[None] = []
    made = Expiry(
        stores.database, stores.worker, batch=batch, poll=1, wake=lambda: woken.append(None)
    )
    return made, woken


async def test_expired_passages_disappear_at_once(stores: Stores) -> None:
    agent, old, young = await aged(stores)
    await live(stores, young, HOUR)
    for missing in (
        stores.passages.get(old.id, show_deleted=True),
        stores.history.update(old.id, PassageChange(text=new_text("new")), ago(0)),
        stores.history.delete(old.id, Author(), ago(0)),
        stores.history.restore(old.id, 1, PassageChange(), ago(0)),
        stores.history.versions(old.id, 5, None),
        stores.history.purge(old.id, RequestKey()),
    ):
        with pytest.raises(NotFoundError):
            await missing
    within = Filter((young.archive_id,), show_deleted=True)
    assert [passage.id for passage in await stores.passages.page(within, 5, None)] == [young.id]
    async with stores.passages.open_snapshot("boat", within, 5) as snapshot:
        assert set(await snapshot.by_ids([old.id, young.id])) == {young.id}
        waiting = await snapshot.waiting()
    for by_words in (waiting, await stores.passages.by_words("boat", within, 5)):
        assert [match.id for match, _ in by_words] == [young.id]
    stats = await stores.archives.stats(agent)
    assert (stats.passage_count, stats.tags) == (1, ("both",))
    assert await stores.archives.tags("", agent) == {"both": 1}
    assert await stores.archives.tags(young.archive_id, "") == {"both": 1}
    assert (await stores.archives.get(young.archive_id)).passage_count == 1
    (listed,) = await stores.archives.page(agent, 5, None)
    assert listed.passage_count == 1


async def test_a_longer_time_to_live_restores_expired_passages(stores: Stores) -> None:
    agent, old, young = await aged(stores)
    await live(stores, young, HOUR)
    await live(stores, young, 24 * HOUR)
    assert (await stores.passages.get(old.id)).id == old.id
    assert (await stores.archives.stats(agent)).passage_count == 2


async def test_the_worker_destroys_expired_passages_in_batches_and_corrects_the_counts(
    stores: Stores,
) -> None:
    agent, old, young = await aged(stores)
    more = [new_passage(f"old {n}", ("old",), ago(200 + n)) for n in range(7)]
    await stores.passages.insert(ArchiveRef(archive_id=old.archive_id), more, archive("-"))
    await stores.history.delete(more[3].id, Author(), ago(0))
    await stores.history.update(old.id, PassageChange(text=new_text("the older boat")), ago(0))
    with context.use(as_project()):
        _, stranger, kept = await aged(stores)
        await live(stores, kept, HOUR)
    worker, woken = expiry(stores, batch=3)
    # The archive of the first project keeps for ever: only the stranger's is looked at.
    assert await worker.destroy_expired() == 1
    assert await worker.destroy_expired() == 0
    await live(stores, young, HOUR)
    done = []
    while (count := await worker.destroy_expired()) > 0:
        done.append(count)
    assert done == [3, 3, 2]
    assert woken
    async with stores.database.transaction() as connection:
        rows = await connection.execute(
            sql("SELECT id, text, purge FROM archival.passages ORDER BY id")
        )
        left = {row.id: (row.text, row.purge) for row in rows}
        assert await _count(connection, "passage_versions") == 0
        assert await _count(connection, "passage_likeness") == 1
    assert left[young.id] == ("the young boat", False)
    assert {row for id_, row in left.items() if id_ != young.id} == {("", True)}
    await live(stores, young, 0)
    stats = await stores.archives.stats(agent)
    assert (stats.passage_count, stats.tags) == (1, ("both",))
    assert await stores.archives.tags("", agent) == {"both": 1}
    with context.use(as_project()), pytest.raises(NotFoundError):
        await stores.passages.get(stranger.id)


async def _count(connection: DatabaseConnection, table: str) -> int:
    result = await connection.execute(sql(f"SELECT count(*) FROM archival.{table}"))
    return int(result.scalar_one())


async def test_an_expired_text_is_not_a_duplicate(stores: Stores) -> None:
    _, _, young = await aged(stores)
    await live(stores, young, HOUR)
    place = ArchiveRef(archive_id=young.archive_id)
    (again,) = await stores.passages.insert(
        place, [new_passage("the old boat", created=ago(0))], archive("-")
    )
    assert not again.duplicate
    assert (await stores.archives.get(young.archive_id)).passage_count == 2
    changed = new_passage("another", created=ago(0))
    await live(stores, young, 0)
    await stores.passages.insert(place, [changed], archive("-"))
    (aging,) = await stores.passages.insert(
        place, [new_passage("to be", created=ago(90))], archive("-")
    )
    await live(stores, young, HOUR)
    new = await stores.history.update(changed.id, PassageChange(text=new_text("to be")), ago(0))
    assert (new.text, aging.duplicate) == ("to be", False)


async def test_passages_older_than_the_time_to_live_are_refused(stores: Stores) -> None:
    _, _, young = await aged(stores)
    await live(stores, young, HOUR)
    new = [
        replace(new_passage(text, created=ago(seconds)), field=f"passages[{index}]")
        for index, (text, seconds) in enumerate((("fine", 30), ("too old", 61)))
    ]
    with pytest.raises(InvalidArgumentError) as caught:
        await stores.passages.insert(ArchiveRef(archive_id=young.archive_id), new, archive("-"))
    assert [violation.field for violation in caught.value.violations] == ["passages[1].create_time"]


def project_of(request: context.RequestContext) -> str:
    with context.use(request):
        return context.current_project()


class SlowDatabase:
    """A database in which statements for one project run into their time limit."""

    def __init__(self, stores: Stores, slow_project: str) -> None:
        self._database = stores.database
        self._slow_project = slow_project

    def transaction(self, *, project_id: str) -> AbstractAsyncContextManager[DatabaseConnection]:
        if project_id == self._slow_project:
            raise DeadlineExceededError("a database statement took too long")
        return self._database.transaction(project_id=project_id)


async def test_archives_whose_passages_cannot_be_destroyed_do_not_stop_the_others(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destruction, "_ARCHIVE_BATCH", 2)
    callers = sorted((as_project() for _ in range(2)), key=project_of)
    for caller in callers:
        with context.use(caller):
            for number in range(2):
                _, old, _ = await aged(stores, f"archive {number}")
                await live(stores, old, HOUR)
    slow: Any = SlowDatabase(stores, project_of(callers[0]))
    worker = Expiry(slow, stores.worker, batch=10, poll=1, wake=lambda: None)
    assert await worker.destroy_expired() == 2
    assert await worker.destroy_expired() == 0
    assert await expiry(stores)[0].destroy_expired() == 2


async def test_expired_passages_are_removed_from_the_index(
    finder: Finder,
) -> None:
    _, old, young = await aged(finder.stores)
    await finder.index_all()
    search = Search(query="boat", top_k=5, archive_ids=(young.archive_id,))
    assert len((await finder.search.search(search)).hits) == 2
    await live(finder.stores, young, HOUR)
    (hit,) = (await finder.search.search(search)).hits
    assert hit.item.id == young.id
    worker, _ = expiry(finder.stores)
    assert await worker.destroy_expired() == 1
    await finder.index_all()
    within = Filter((young.archive_id,))
    hits = await finder.index.search(context.current_project(), "old boat", within, 5)
    assert [hit.document_id for hit in hits] == [young.id]
    (tombstone,) = await finder.stores.pending.load(context.current_project(), [old.id])
    assert (tombstone.text, tombstone.indexed) == ("", True)
