"""The contracts of `ArchiveStore` and `PassageStore`, on PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from archival_stores import DIM, MODEL, NOW, Stores, archive, new_passage, new_text
from callers import as_project
from gates import gate, waiting_sessions
from strata.archival.convert.archives import own_archive
from strata.archival.domain.history import Author, PassageChange
from strata.archival.domain.passages import (
    MOST_TAGS,
    ArchiveChange,
    ArchiveRef,
    Filter,
    InsertedPassage,
)
from strata.archival.store import PendingPassages
from strata.archival.store import archives as archive_store
from strata.archival.store import passages as passage_store
from strata.protocol.errors import AbortedError, AlreadyExistsError, NotFoundError, Reason
from strata.shared import context
from strata.shared.db import sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id


async def test_an_agents_archive_is_made_at_its_first_passage(stores: Stores) -> None:
    agent = new_id("agent")
    with pytest.raises(NotFoundError) as missing:
        await stores.passages.archive_ids(agent)
    assert missing.value.reason is Reason.AGENT_NOT_FOUND
    await stores.archives.prepare(agent)
    assert await stores.passages.archive_ids(agent) == []
    (first,) = await stores.insert(agent, "one", tags=("b", "a"))
    (second,) = await stores.insert(agent, "two", tags=("b",))
    assert first.passage.archive_id == second.passage.archive_id
    stats = await stores.archives.stats(agent)
    assert (stats.passage_count, stats.tags) == (2, ("b", "a")), "most used first"
    assert await stores.archives.tags("", agent) == {"a": 1, "b": 2}


async def test_only_the_most_used_tags_are_listed_and_the_others_are_counted(
    stores: Stores,
) -> None:
    agent = new_id("agent")
    for number in range(130):
        await stores.insert(agent, f"fact {number}", tags=(f"tag {number:04}", "often"))
    stats = await stores.archives.stats(agent)
    assert stats.tags[0] == "often"
    assert stats.tags[1:] == tuple(f"tag {number:04}" for number in range(MOST_TAGS - 1))
    assert stats.more_tags == 130 + 1 - MOST_TAGS


async def test_many_first_passages_at_once_make_one_archive(stores: Stores) -> None:
    agent = new_id("agent")
    done = await asyncio.gather(*(stores.insert(agent, f"fact {n}") for n in range(8)))
    assert len({item[0].passage.archive_id for item in done}) == 1
    assert (await stores.archives.stats(agent)).passage_count == 8


async def test_the_archive_of_an_agent_is_created_although_its_name_is_used(stores: Stores) -> None:
    agent = new_id("agent")
    name = own_archive(agent, MODEL, DIM, NOW).name
    taken = await stores.archives.create(archive(name), "", RequestKey())
    (stored,) = await stores.insert(agent, "one")
    assert stored.passage.archive_id != taken.id
    assert (await stores.archives.get(stored.passage.archive_id)).name.startswith(name)


async def test_the_same_text_is_stored_once(stores: Stores) -> None:
    agent = new_id("agent")
    (first,) = await stores.insert(agent, "same")
    again, other = await stores.insert(agent, "same", "other")
    assert again.duplicate
    assert again.passage.id == first.passage.id
    assert not other.duplicate
    assert (await stores.archives.stats(agent)).passage_count == 2


async def test_a_repeated_request_gets_the_first_answer(stores: Stores) -> None:
    place = ArchiveRef(agent_id=new_id("agent"))
    template = own_archive(place.agent_id, MODEL, DIM, NOW)
    await stores.archives.prepare(place.agent_id)
    first = await stores.passages.insert(
        place, [new_passage("one")], template, RequestKey("r1", "digest")
    )
    again = await stores.passages.insert(
        place, [new_passage("one")], template, RequestKey("r1", "digest")
    )
    assert again[0].passage.id == first[0].passage.id
    with pytest.raises(AlreadyExistsError) as caught:
        await stores.passages.insert(
            place, [new_passage("two")], template, RequestKey("r1", "other")
        )
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_nothing_is_stored_for_an_unknown_agent(stores: Stores) -> None:
    agent = new_id("agent")
    made = await stores.archives.create(archive("shared"), "", RequestKey())
    place = ArchiveRef(agent_id=agent)
    for refused in (
        stores.passages.insert(place, [new_passage("x")], own_archive(agent, MODEL, DIM, NOW)),
        stores.archives.create(archive("new"), agent, RequestKey()),
        stores.archives.attach(agent, made.id),
        stores.archives.detach(agent, made.id),
    ):
        with pytest.raises(NotFoundError) as caught:
            await refused
        assert caught.value.reason is Reason.AGENT_NOT_FOUND
    assert [item.name for item in await stores.archives.page("", 10, None)] == ["shared"]


async def test_a_released_agent_cannot_store_passages(stores: Stores) -> None:
    agent = new_id("agent")
    await stores.insert(agent, "before")
    await stores.archives.release(agent)
    place = ArchiveRef(agent_id=agent)
    with pytest.raises(NotFoundError):
        await stores.passages.insert(
            place, [new_passage("after")], own_archive(agent, MODEL, DIM, NOW)
        )


async def test_a_passage_for_an_unknown_archive_is_refused(stores: Stores) -> None:
    with pytest.raises(NotFoundError) as caught:
        await stores.passages.insert(
            ArchiveRef(archive_id=new_id("archive")), [new_passage("x")], archive("x")
        )
    assert caught.value.reason is Reason.ARCHIVE_NOT_FOUND


async def test_an_update_changes_the_tag_counts_and_marks_the_passage_as_not_indexed(
    stores: Stores,
) -> None:
    agent = new_id("agent")
    (stored,) = await stores.insert(agent, "one", tags=("old", "kept"))
    later = NOW + timedelta(hours=1)
    changed = await stores.history.update(
        stored.passage.id,
        PassageChange(expected_revision=1, text=new_text("one more"), tags=("kept", "new")),
        later,
    )
    assert (changed.text, changed.tags, changed.revision) == ("one more", ("kept", "new"), 2)
    assert not changed.indexed
    assert await stores.archives.tags("", agent) == {"kept": 1, "new": 1}
    with pytest.raises(AbortedError, match=r"at revision 2, not 1: read it again") as caught:
        await stores.history.update(
            stored.passage.id, PassageChange(expected_revision=1, tags=()), later
        )
    assert caught.value.metadata == {"expected": "1", "current": "2"}


async def test_a_repeated_change_gets_the_first_answer(stores: Stores) -> None:
    (stored,) = await stores.insert(new_id("agent"), "one")

    async def change(request: str) -> int:
        change = PassageChange(
            request=RequestKey(request), expected_revision=1, text=new_text("two")
        )
        return (await stores.history.update(stored.passage.id, change, NOW)).revision

    assert [await change("r1"), await change("r1")] == [2, 2]
    with pytest.raises(AbortedError):
        await change("r2")


async def test_deleting_a_passage_twice_counts_once(stores: Stores) -> None:
    agent = new_id("agent")
    kept, gone = await stores.insert(agent, "kept", "gone", tags=("t",))
    await stores.history.delete(gone.passage.id, Author(), NOW)
    await stores.history.delete(gone.passage.id, Author(), NOW)
    with pytest.raises(NotFoundError):
        await stores.passages.get(gone.passage.id)
    stats = await stores.archives.stats(agent)
    assert (stats.passage_count, stats.tags) == (1, ("t",))
    assert (await stores.insert(agent, "gone"))[0].duplicate is False
    assert (await stores.passages.get(kept.passage.id)).text == "kept"


async def test_pages_contain_every_passage_once_in_order(stores: Stores) -> None:
    agent = new_id("agent")
    texts = [f"fact {number}" for number in range(7)]
    (first, *_) = await stores.insert(agent, *texts, tags=("t",))
    within = Filter((first.passage.archive_id,))
    seen: list[str] = []
    cursor = None
    while True:
        page = await stores.passages.page(replace(within, tags=("t",)), 3, cursor)
        if not page:
            break
        seen += [item.text for item in page]
        cursor = (page[-1].create_time, page[-1].id)
    assert sorted(seen) == texts
    assert await stores.passages.page(replace(within, tags=("no",)), 3, None) == []


async def test_an_attached_archive_is_listed_for_each_of_its_agents(stores: Stores) -> None:
    first, second = new_id("agent"), new_id("agent")
    for agent in (first, second):
        await stores.archives.prepare(agent)
    made = await stores.archives.create(archive("shared"), first, RequestKey())
    attached = await stores.archives.attach(second, made.id)
    assert attached.agent_ids == tuple(sorted((first, second)))
    await stores.archives.detach(first, made.id)
    assert (await stores.archives.get(made.id)).agent_ids == (second,)
    page = await stores.archives.page(second, 10, None)
    assert [item.id for item in page] == [made.id]


async def test_an_archive_name_is_unique_and_repeated_requests_return_the_first_answer(
    stores: Stores,
) -> None:
    made = await stores.archives.create(archive("one"), "", RequestKey("r1"))
    again = await stores.archives.create(archive("one"), "", RequestKey("r1"))
    assert again.id == made.id
    with pytest.raises(AlreadyExistsError):
        await stores.archives.create(archive("one"), "", RequestKey())
    other = await stores.archives.create(archive("two"), "", RequestKey())
    with pytest.raises(AlreadyExistsError):
        await stores.archives.update(other.id, ArchiveChange(name="one"), NOW)
    renamed = await stores.archives.update(other.id, ArchiveChange(description="d"), NOW)
    assert (renamed.name, renamed.description) == ("two", "d")


async def test_releasing_an_agent_deletes_its_own_archive_only(stores: Stores) -> None:
    agent = new_id("agent")
    await stores.insert(agent, "private")
    shared = await stores.archives.create(archive("shared"), agent, RequestKey())
    assert await stores.archives.release(agent) == 1
    assert await stores.archives.release(agent) == 0
    assert (await stores.archives.get(shared.id)).agent_ids == ()
    assert (await stores.archives.stats(agent)).passage_count == 0


async def test_releasing_an_agent_keeps_its_archive_if_it_is_attached_to_another_agent(
    stores: Stores,
) -> None:
    agent, other = new_id("agent"), new_id("agent")
    (stored,) = await stores.insert(agent, "read by both")
    archive_id = stored.passage.archive_id
    await stores.archives.prepare(other)
    await stores.archives.attach(other, archive_id)
    assert await stores.archives.release(agent) == 0
    assert (await stores.archives.get(archive_id)).agent_ids == (other,)
    assert (await stores.archives.stats(other)).passage_count == 1
    # It is a shared archive now, which is not deleted with the agent that has it last.
    assert await stores.archives.release(other) == 0
    assert (await stores.archives.get(archive_id)).agent_ids == ()


async def test_an_agent_has_a_new_archive_after_its_own_was_detached(stores: Stores) -> None:
    agent = new_id("agent")
    (old,) = await stores.insert(agent, "before")
    await stores.archives.detach(agent, old.passage.archive_id)
    (new,) = await stores.insert(agent, "after")
    assert new.passage.archive_id != old.passage.archive_id
    assert [a.id for a in await stores.archives.page(agent, 10, None)] == [new.passage.archive_id]
    assert (await stores.archives.stats(agent)).passage_count == 1
    assert await stores.archives.release(agent) == 1
    assert (await stores.archives.get(old.passage.archive_id)).agent_ids == ()


async def test_detaching_a_shared_archive_leaves_the_owner_its_own(stores: Stores) -> None:
    agent, other = new_id("agent"), new_id("agent")
    (stored,) = await stores.insert(agent, "one")
    await stores.archives.prepare(other)
    await stores.archives.attach(other, stored.passage.archive_id)
    await stores.archives.detach(other, stored.passage.archive_id)
    (more,) = await stores.insert(agent, "two")
    assert more.passage.archive_id == stored.passage.archive_id
    assert await stores.archives.release(agent) == 2


@pytest.mark.parametrize("count", [2, 4, 5])
@pytest.mark.parametrize("own", [False, True])
async def test_a_large_archive_is_deleted_in_several_transactions(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, count: int, own: bool
) -> None:
    monkeypatch.setattr(archive_store, "_DESTROYED_AT_ONCE", 2)
    agent = new_id("agent")
    inserted = await stores.insert(agent, *(f"text {n}" for n in range(count)), tags=("red",))
    archive_id = inserted[0].passage.archive_id
    before = stores.database.statistics.alone
    if own:
        assert await stores.archives.release(agent) == count
    else:
        assert await stores.archives.delete(archive_id) == count
    # One statement looks at the size, after one that looks whether the agent's archive is shared.
    # Of more than two passages, each further one destroys two.
    destroying = 0 if count == 2 else count // 2 + 1
    assert stores.database.statistics.alone - before == own + 1 + destroying
    with pytest.raises(NotFoundError):
        await stores.archives.get(archive_id)
    async with stores.database.transaction() as connection:
        rows = await connection.execute(sql("SELECT text, purge FROM archival.passages"))
        assert [tuple(row) for row in rows] == [("", True)] * count


@pytest.mark.parametrize("own", [False, True])
async def test_a_passage_that_is_stored_meanwhile_is_deleted_with_its_archive(
    stores: Stores, urls: Any, own: bool
) -> None:
    agent = new_id("agent")
    (stored,) = await stores.insert(agent, "before")
    async with gate(urls.admin_url, "archival.archives", "UPDATE", "true") as connection:
        # It has stored the passage, and counts it.
        inserting = asyncio.create_task(stores.insert(agent, "meanwhile"))
        await waiting_sessions(connection, 1)
        archives = stores.archives
        deletion = archives.release(agent) if own else archives.delete(stored.passage.archive_id)
        deleting = asyncio.create_task(deletion)
        await waiting_sessions(connection, 2)
    await inserting
    await deleting
    assert await texts_left(stores) == {""}


@pytest.mark.parametrize("how", ["text", "tags", "deletion", "purge"])
async def test_a_change_of_a_passage_during_the_deletion_of_its_archive_leaves_no_text(
    stores: Stores, urls: Any, how: str
) -> None:
    (stored,) = await stores.insert(new_id("agent"), "old words", tags=("old",))
    passage, history = stored.passage, stores.history

    async def change() -> None:
        match how:
            case "text":
                await history.update(passage.id, PassageChange(text=new_text("new words")), NOW)
            case "tags":
                await history.update(passage.id, PassageChange(tags=("new",)), NOW)
            case "deletion":
                await history.delete(passage.id, Author(), NOW)
            case "purge":
                await history.purge(passage.id, RequestKey())

    async with gate(urls.admin_url, "archival.passages", "UPDATE", "true") as connection:
        changing = asyncio.create_task(change())
        await waiting_sessions(connection, 1)
        deleting = asyncio.create_task(stores.archives.delete(passage.archive_id))
        await waiting_sessions(connection, 2)
    await changing
    await deleting
    assert await texts_left(stores) == {""}
    tables = ("passage_versions", "passage_likeness", "archive_tags")
    counts = " + ".join(f"(SELECT count(*) FROM archival.{table})" for table in tables)
    async with stores.database.transaction(read_only=True) as reading:
        assert (await reading.execute(sql(f"SELECT {counts}"))).scalar_one() == 0


async def test_concurrent_batches_with_the_same_texts_in_another_order_are_stored_once(
    stores: Stores, urls: Any
) -> None:
    made = await stores.archives.create(archive("notes"), "", RequestKey())
    texts = ("first", "middle", "last")

    async def insert(*texts: str) -> list[InsertedPassage]:
        passages = [new_passage(text) for text in texts]
        return await stores.passages.insert(ArchiveRef(archive_id=made.id), passages, archive("x"))

    condition = "NEW.text = 'middle'"
    async with gate(urls.admin_url, "archival.passages", "INSERT", condition) as connection:
        inserting = [asyncio.create_task(insert(*order)) for order in (texts, texts[::-1])]
        # In the given order, each would now have inserted a text that the other one needs next.
        await waiting_sessions(connection, 2)
    inserted, backwards = await asyncio.gather(*inserting)

    assert [item.passage.text for item in inserted] == list(texts)
    assert [item.passage.id for item in backwards[::-1]] == [item.passage.id for item in inserted]
    assert sum(item.duplicate for item in (*inserted, *backwards)) == len(texts)


async def test_an_archive_that_is_deleted_meanwhile_takes_no_passage(
    stores: Stores, urls: Any
) -> None:
    made = await stores.archives.create(archive("notes"), "", RequestKey())
    async with gate(urls.admin_url, "archival.passages", "INSERT", "true") as connection:
        inserting = asyncio.create_task(
            stores.passages.insert(
                ArchiveRef(archive_id=made.id),
                [new_passage("late"), new_passage("too late")],
                archive("x"),
            )
        )
        # It has read which archive it stores in, and locked nothing yet.
        await waiting_sessions(connection, 1)
        await stores.archives.delete(made.id)
    with pytest.raises(NotFoundError) as caught:
        await inserting
    assert caught.value.reason is Reason.ARCHIVE_NOT_FOUND
    assert await texts_left(stores) == set()


async def test_a_single_passage_waits_for_the_deletion_of_its_archive(
    stores: Stores, urls: Any
) -> None:
    made = await stores.archives.create(archive("notes"), "", RequestKey())
    place = ArchiveRef(archive_id=made.id)
    await stores.passages.insert(place, [new_passage("before")], archive("x"))
    async with gate(urls.admin_url, "archival.passages", "UPDATE", "true") as connection:
        deleting = asyncio.create_task(stores.archives.delete(made.id))
        await waiting_sessions(connection, 1)
        inserting = asyncio.create_task(
            stores.passages.insert(place, [new_passage("late")], archive("x"))
        )
        await waiting_sessions(connection, 2)
    await deleting
    with pytest.raises(NotFoundError) as caught:
        await inserting
    assert caught.value.reason is Reason.ARCHIVE_NOT_FOUND
    assert await texts_left(stores) == {""}


async def texts_left(stores: Stores) -> set[str]:
    async with stores.database.transaction(read_only=True) as connection:
        texts = await connection.execute(sql("SELECT text FROM archival.passages"))
        return set(texts.scalars())


async def test_deleting_an_archive_deletes_the_text_of_its_passages(stores: Stores) -> None:
    agent = new_id("agent")
    (stored,) = await stores.insert(agent, "private words")
    assert await stores.archives.delete(stored.passage.archive_id) == 1
    with pytest.raises(NotFoundError):
        await stores.archives.delete(stored.passage.archive_id)
    with pytest.raises(NotFoundError):
        await stores.passages.get(stored.passage.id)
    (project, ids), *_ = (await stores.pending.find(10)).ids.items()
    (tombstone,) = await stores.pending.load(project, ids)
    assert (tombstone.text, tombstone.deleted) == ("", True)
    await stores.pending.done(project, [tombstone])
    # A write that began before may still be running.
    assert await stores.pending.load(project, ids) == [replace(tombstone, indexed=True)]
    assert not (await stores.pending.find(10)).ids
    assert await stores.pending.queue_settled(10) == 0
    later = PendingPassages(stores.database, stores.worker, timedelta(0))
    assert await later.queue_settled(10) == 1
    assert (await later.find(10)).ids == {project: ids}
    assert await later.done(project, [tombstone]) == []
    assert await later.load(project, ids) == []


async def test_a_revision_made_while_indexing_stays_pending(stores: Stores) -> None:
    agent = new_id("agent")
    (stored,) = await stores.insert(agent, "one")
    ((project, ids),) = (await stores.pending.find(10)).ids.items()
    seen = await stores.pending.load(project, ids)
    await stores.history.update(stored.passage.id, PassageChange(text=new_text("two")), NOW)
    await stores.pending.done(project, seen)
    assert list((await stores.pending.find(10)).ids.values()) == [[stored.passage.id]]


async def test_another_project_sees_nothing(stores: Stores) -> None:
    agent = new_id("agent")
    (stored,) = await stores.insert(agent, "secret")
    with context.use(as_project()):
        for missing in (
            stores.passages.archive_ids(agent),
            stores.passages.check_archives([stored.passage.archive_id]),
            stores.passages.get(stored.passage.id),
            stores.history.delete(stored.passage.id, Author(), NOW),
            stores.history.update(stored.passage.id, PassageChange(), NOW),
            stores.history.restore(stored.passage.id, 1, PassageChange(), NOW),
            stores.history.purge(stored.passage.id, RequestKey()),
            stores.history.versions(stored.passage.id, 5, None),
            stores.archives.get(stored.passage.archive_id),
            stores.archives.attach(new_id("agent"), stored.passage.archive_id),
        ):
            with pytest.raises(NotFoundError):
                await missing


async def test_an_insert_of_one_passage_costs_one_statement(stores: Stores) -> None:
    agent = new_id("agent")
    # The first one creates the archive.
    (first,) = await stores.insert(agent, "first")
    counters = stores.database.statistics
    for place in (ArchiveRef(agent_id=agent), ArchiveRef(archive_id=first.passage.archive_id)):
        new = [new_passage(f"fact {place}", ("a", "b"))]
        before = (counters.statements, counters.transactions)
        await stores.passages.insert(place, new, archive("mine"))
        assert (counters.statements - before[0], counters.transactions - before[1]) == (1, 0)


async def test_the_archives_of_the_agents_that_stored_last_are_remembered(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage_store, "_MOST_OWN_ARCHIVES", 2)
    first, second, third = (new_id("agent") for _ in range(3))
    for agent in (first, second, first, third):
        await stores.insert(agent, new_id("fact"))
    counters = stores.database.statistics
    before = counters.statements
    new = [new_passage("the last fact")]
    await stores.passages.insert(ArchiveRef(agent_id=first), new, archive("mine"))
    assert counters.statements - before == 1


async def test_an_insert_of_several_passages_costs_two_statements_and_one_commit(
    stores: Stores,
) -> None:
    agent = new_id("agent")
    await stores.insert(agent, "first")
    counters = stores.database.statistics
    for number in range(3):
        new = [new_passage(f"{what} {number}", ("a", "b")) for what in ("fact", "note")]
        before = (counters.statements, counters.commits)
        await stores.passages.insert(ArchiveRef(agent_id=agent), new, archive("mine"))
        assert (counters.statements - before[0], counters.commits - before[1]) == (2, 1)


async def test_a_passage_goes_to_the_archive_that_the_agent_has_now(stores: Stores) -> None:
    """The store of passages remembers the own archives of agents, and does not see a deletion."""
    agent = new_id("agent")
    (old,) = await stores.insert(agent, "old")
    await stores.archives.delete(old.passage.archive_id)
    (new,) = await stores.insert(agent, "new")
    assert new.passage.archive_id != old.passage.archive_id
    assert (await stores.archives.stats(agent)).passage_count == 1


def test_the_content_hash_depends_on_the_text_only() -> None:
    one = new_passage("same")
    assert one.content_hash == replace(one, tags=("x",), id=new_id("passage")).content_hash
