"""The contract of `PassageHistory`: versions, deletion, restoration, destruction."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from archival_stores import MODEL, NOW, Stores, new_passage, new_text
from strata.archival.convert.archives import own_archive
from strata.archival.domain.history import Author, Operation, PassageChange
from strata.archival.domain.passages import ArchiveRef, Filter, Origin, Passage, SuppliedVector
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    NotFoundError,
    Reason,
)
from strata.shared.context import current_project
from strata.shared.db import sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

LATER = NOW + timedelta(hours=1)


async def stored(stores: Stores, words: str, tags: tuple[str, ...] = ()) -> Passage:
    (made,) = await stores.insert(new_id("agent"), words, tags=tags)
    return made.passage


async def words_of(stores: Stores, passage: Passage) -> list[tuple[int, str, str]]:
    page = await stores.history.versions(passage.id, 50, None)
    return [(version.revision, version.operation.value, version.text) for version in page]


async def rows_of(stores: Stores, table: str, passage_id: str) -> int:
    async with stores.database.transaction() as connection:
        result = await connection.execute(
            sql(f"SELECT count(*) FROM archival.{table} WHERE passage_id = :id"),
            {"id": passage_id},
        )
        return int(result.scalar_one())


async def test_every_change_is_a_version_with_its_author(stores: Stores) -> None:
    first = await stored(stores, "one", ("a",))
    origin = Origin(agent_id=new_id("agent"), run_id=new_id("run"), tool_call_id="call_1")
    author = Author("somebody", origin, "it was wrong")
    change = PassageChange(author, text=new_text("two"), tags=("b",), metadata={"k": "v"})
    await stores.history.update(first.id, change, LATER)
    await stores.history.delete(first.id, Author("another"), LATER + timedelta(hours=1))
    last, second, made = await stores.history.versions(first.id, 50, None)
    assert (made.operation, made.text, made.tags, dict(made.metadata)) == (
        Operation.INSERT,
        "one",
        ("a",),
        {},
    )
    assert (made.author.principal, made.create_time) == ("key", NOW)
    assert (second.operation, second.text, second.tags) == (Operation.UPDATE, "two", ("b",))
    assert (second.author, second.create_time) == (author, LATER)
    assert dict(second.metadata) == {"k": "v"}
    assert (last.operation, last.author.principal, last.revision) == (
        Operation.DELETE,
        "another",
        3,
    )


async def test_versions_are_paged_newest_first(stores: Stores) -> None:
    passage = await stored(stores, "0")
    for number in range(1, 5):
        await stores.history.update(passage.id, PassageChange(text=new_text(str(number))), LATER)
    seen: list[str] = []
    cursor = None
    while True:
        page = await stores.history.versions(passage.id, 2, cursor)
        if not page:
            break
        seen += [version.text for version in page]
        cursor = (page[-1].revision,)
    assert seen == ["4", "3", "2", "1", "0"]


async def test_deleted_passages_are_hidden_and_can_be_restored(stores: Stores) -> None:
    passage = await stored(stores, "hidden", ("t",))
    archive = passage.archive_id
    await stores.history.delete(passage.id, Author(), LATER)
    with pytest.raises(NotFoundError):
        await stores.passages.get(passage.id)
    with pytest.raises(NotFoundError):
        await stores.history.update(passage.id, PassageChange(tags=()), LATER)
    assert (await stores.passages.get(passage.id, show_deleted=True)).deleted
    assert await stores.passages.page(Filter((archive,)), 5, None) == []
    shown = await stores.passages.page(Filter((archive,), show_deleted=True), 5, None)
    assert [passage.id for passage in shown] == [passage.id]
    assert (await stores.archives.get(archive)).passage_count == 0
    assert await stores.archives.tags(archive, "") == {}
    back = await stores.history.restore(passage.id, 0, PassageChange(), LATER)
    assert (back.deleted, back.revision, back.indexed) == (False, 3, False)
    assert (await stores.archives.get(archive)).passage_count == 1
    assert await stores.archives.tags(archive, "") == {"t": 1}
    # There is nothing to undo any more.
    assert (await stores.history.restore(passage.id, 0, PassageChange(), LATER)).revision == 3


async def test_restoring_an_older_version_creates_a_new_one(stores: Stores) -> None:
    passage = await stored(stores, "one", ("a",))
    await stores.history.update(passage.id, PassageChange(text=new_text("two"), tags=("b",)), LATER)
    await stores.history.delete(passage.id, Author(), LATER)
    back = await stores.history.restore(passage.id, 1, PassageChange(Author("me")), LATER)
    assert (back.text, back.tags, back.revision, back.deleted) == ("one", ("a",), 4, False)
    assert await words_of(stores, passage) == [
        (4, "restore", "one"),
        (3, "delete", "two"),
        (2, "update", "two"),
        (1, "insert", "one"),
    ]
    assert await stores.archives.tags(passage.archive_id, "") == {"a": 1}
    with pytest.raises(NotFoundError) as caught:
        await stores.history.restore(passage.id, 9, PassageChange(), LATER)
    assert caught.value.reason is Reason.VERSION_NOT_FOUND
    with pytest.raises(AbortedError):
        await stores.history.restore(passage.id, 2, PassageChange(expected_revision=1), LATER)


async def test_the_same_text_may_be_stored_after_a_deletion_but_not_beside_it(
    stores: Stores,
) -> None:
    agent = new_id("agent")
    (first,) = await stores.insert(agent, "same")
    await stores.history.delete(first.passage.id, Author(), LATER)
    (second,) = await stores.insert(agent, "same")
    assert (second.duplicate, second.passage.id != first.passage.id) == (False, True)
    with pytest.raises(AlreadyExistsError) as caught:
        await stores.history.restore(first.passage.id, 0, PassageChange(), LATER)
    assert caught.value.reason is Reason.NAME_TAKEN
    (other,) = await stores.insert(agent, "other")
    with pytest.raises(AlreadyExistsError):
        await stores.history.update(other.passage.id, PassageChange(text=new_text("same")), LATER)


async def test_any_request_is_repeated_with_its_first_answer(stores: Stores) -> None:
    passage = await stored(stores, "one")

    def change(number: str, words: str) -> PassageChange:
        return PassageChange(request=RequestKey(f"r{number}", words), text=new_text(words))

    first = await stores.history.update(passage.id, change("1", "two"), LATER)
    await stores.history.update(passage.id, change("2", "three"), LATER)
    await stores.history.delete(passage.id, Author(), LATER)
    restoration = PassageChange(request=RequestKey("r3", "undo"))
    undone = await stores.history.restore(passage.id, 0, restoration, LATER)
    again = await stores.history.update(passage.id, change("1", "two"), LATER)
    assert (again.revision, again.text, again.deleted) == (first.revision, "two", False)
    await stores.history.delete(passage.id, Author(), LATER)
    assert (await stores.history.restore(passage.id, 0, restoration, LATER)) == undone
    with pytest.raises(NotFoundError):
        await stores.passages.get(passage.id)
    with pytest.raises(AlreadyExistsError) as caught:
        await stores.history.update(passage.id, change("1", "else"), LATER)
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    assert len(await words_of(stores, passage)) == 6


async def test_one_change_sent_many_times_at_once_happens_once(stores: Stores) -> None:
    passage = await stored(stores, "one")
    change = PassageChange(request=RequestKey("r1", "d"), text=new_text("two"))
    answers = await asyncio.gather(
        *(stores.history.update(passage.id, change, LATER) for _ in range(6))
    )
    assert {answer.revision for answer in answers} == {2}


async def test_purging_deletes_every_version_and_vector_of_the_passage(stores: Stores) -> None:
    agent = new_id("agent")
    await stores.archives.prepare(agent)
    vector = SuppliedVector.of(MODEL, (1.0,) * 384)
    (made,) = await stores.passages.insert(
        ArchiveRef(agent_id=agent),
        [new_passage("private words", ("t",), vector=vector)],
        own_archive(agent, MODEL, 384, NOW),
        RequestKey("r0", "d"),
    )
    passage = made.passage
    await stores.history.update(passage.id, PassageChange(text=new_text("more private")), LATER)
    assert await stores.history.purge(passage.id, RequestKey("p1", "d")) == 2
    for table in ("passage_versions", "passage_likeness", "passage_vectors"):
        assert await rows_of(stores, table, passage.id) == 0
    async with stores.database.transaction() as connection:
        row = (await connection.execute(sql("SELECT p::text FROM archival.passages p"))).one()
    assert "private" not in row.p
    assert "r0" not in row.p
    for gone in (
        stores.passages.get(passage.id, show_deleted=True),
        stores.history.versions(passage.id, 5, None),
        stores.history.restore(passage.id, 1, PassageChange(), LATER),
        stores.history.purge(passage.id, RequestKey()),
    ):
        with pytest.raises(NotFoundError):
            await gone
    assert await stores.history.purge(passage.id, RequestKey("p1", "d")) == 2
    stats = await stores.archives.stats(agent)
    assert (stats.passage_count, stats.tags) == (0, ())
    (ids,) = (await stores.pending.find(10)).ids.values()
    await stores.pending.done(
        current_project(), await stores.pending.load(current_project(), list(ids))
    )
    (tombstone,) = await stores.pending.load(current_project(), list(ids))
    assert (tombstone.text, tombstone.indexed) == ("", True)


async def test_a_deleted_passage_is_purged_without_counting_twice(stores: Stores) -> None:
    agent = new_id("agent")
    gone, _kept = await stores.insert(agent, "gone", "kept", tags=("t",))
    await stores.history.delete(gone.passage.id, Author(), LATER)
    assert await stores.history.purge(gone.passage.id, RequestKey()) == 2
    stats = await stores.archives.stats(agent)
    assert (stats.passage_count, stats.tags) == (1, ("t",))
    assert await stores.archives.tags("", agent) == {"t": 1}


async def test_deleting_an_archive_deletes_the_versions_of_its_passages(stores: Stores) -> None:
    passage = await stored(stores, "private")
    await stores.history.update(passage.id, PassageChange(text=new_text("other")), LATER)
    await stores.archives.delete(passage.archive_id)
    for table in ("passage_versions", "passage_likeness"):
        assert await rows_of(stores, table, passage.id) == 0


async def test_a_supplied_vector_is_kept_until_the_text_changes(stores: Stores) -> None:
    agent = new_id("agent")
    vector = SuppliedVector.of(MODEL, tuple(float(n) for n in range(384)))
    await stores.archives.prepare(agent)
    (made,) = await stores.passages.insert(
        ArchiveRef(agent_id=agent),
        [new_passage("text", vector=vector)],
        own_archive(agent, MODEL, 384, NOW),
    )

    async def loaded() -> SuppliedVector | None:
        (passage,) = await stores.pending.load(current_project(), [made.passage.id])
        return passage.vector

    assert await loaded() == vector
    await stores.history.update(made.passage.id, PassageChange(tags=("t",)), LATER)
    assert await loaded() == vector
    await stores.history.update(made.passage.id, PassageChange(text=new_text("other")), LATER)
    assert await loaded() is None


@pytest.mark.parametrize("request_id", ["", "r"])
async def test_a_change_of_nothing_writes_no_version(stores: Stores, request_id: str) -> None:
    first = await stored(stores, "one", ("a", "b"))
    key = RequestKey(request_id, "digest")
    same = PassageChange(
        Author("somebody"), key, text=new_text("one"), tags=("a", "b"), metadata={}
    )
    assert await stores.history.update(first.id, same, LATER) == first
    assert await words_of(stores, first) == [(1, "insert", "one")]
    assert (await stores.history.restore(first.id, 1, PassageChange(), LATER)) == first
    outdated = PassageChange(text=new_text("one"), expected_revision=7)
    with pytest.raises(AbortedError):
        await stores.history.update(first.id, outdated, LATER)
    assert await rows_of(stores, "passage_versions", first.id) == 0


async def test_a_repeated_request_that_changed_nothing_changes_nothing_later(
    stores: Stores,
) -> None:
    first = await stored(stores, "one")
    same = PassageChange(Author("somebody"), RequestKey("r", "digest"), text=new_text("one"))
    await stores.history.update(first.id, same, LATER)
    await stores.history.update(first.id, PassageChange(text=new_text("two")), LATER)
    repeated = await stores.history.update(first.id, same, LATER)
    assert (repeated.text, repeated.revision) == ("one", 1)
    assert (await stores.passages.get(first.id)).text == "two"
    other = PassageChange(Author("somebody"), RequestKey("r", "other"), text=new_text("three"))
    with pytest.raises(AlreadyExistsError):
        await stores.history.update(first.id, other, LATER)
