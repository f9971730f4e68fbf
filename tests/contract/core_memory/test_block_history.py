"""The contract of `BlockStore` for history: deletions, past memories, selections of edits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from plans import generic_plan_of
from strata.core_memory.domain.blocks import (
    DELETE,
    Authorship,
    Block,
    EditSelection,
    NewBlock,
    Origin,
    deleted_block,
    made_block,
    next_revision,
)
from strata.core_memory.domain.ports import ReplayedError, Unit
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.protocol.errors import AlreadyExistsError
from strata.shared.db import Database
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

NOW = datetime(2026, 11, 21, 20, 43, 9, 123456, tzinfo=UTC)
ResultT = TypeVar("ResultT")


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def by(operation: str, time: datetime, **origin: str) -> Authorship:
    return Authorship(operation, Origin(**origin), "key-1", time)  # type: ignore[arg-type]


@pytest.fixture
async def store(database: Database) -> PostgresBlockStore:
    """The store, with agents a and b."""
    store = PostgresBlockStore(database)
    for agent in ("agent-a", "agent-b"):
        await do(store, lambda unit, agent=agent: unit.begin_agent(agent))  # type: ignore[misc]
    return store


async def do(
    store: PostgresBlockStore, work: Callable[[Unit], Awaitable[ResultT]], request_id: str = ""
) -> ResultT:
    return await store.mutate(RequestKey(request_id, b"same".hex()), work)


async def insert(
    store: PostgresBlockStore,
    label: str,
    value: str = "",
    *,
    agent: str = "",
    made_for: str = "",
    time: datetime = NOW,
    **origin: str,
) -> Block:
    block = made_block(NewBlock(label, value, "About."), (agent,) if agent else (), time)
    authorship = by("create", time, **origin)
    await do(
        store,
        lambda unit: unit.insert(
            block, authorship, agent_id=agent, made_for=made_for, response=b""
        ),
    )
    return block


async def write(
    store: PostgresBlockStore, block: Block, time: datetime, *, value: str, **origin: str
) -> Block:
    changed = replace(next_revision(block, time), value=value)
    await do(store, lambda unit: unit.update(changed, by("replace", time, **origin), response=b""))
    return changed


async def end(store: PostgresBlockStore, block: Block, time: datetime) -> Block:
    ended = deleted_block(block, time)
    await do(store, lambda unit: unit.update(ended, by(DELETE, time), response=b""))
    return ended


async def attach(store: PostgresBlockStore, agent: str, block: Block, time: datetime) -> None:
    await do(store, lambda unit: unit.attach(agent, {block.id: block.label}, time))


async def detach(store: PostgresBlockStore, agent: str, block: Block, time: datetime) -> bool:
    return await do(store, lambda unit: unit.detach(agent, block.id, time))


async def seen(store: PostgresBlockStore, agent: str, time: datetime) -> list[tuple[str, str]]:
    memory = await store.agent_memory_as_of(agent, time)
    assert memory.sizes == {block.label: len(block.value) for block in memory.blocks}
    return [(block.label, block.value) for block in memory.blocks]


async def test_a_deleted_block_keeps_its_history_but_is_not_readable(
    store: PostgresBlockStore,
) -> None:
    block = await insert(store, "human", "text", agent="agent-a")
    await attach(store, "agent-b", block, NOW)
    ended = await end(store, block, at(1))
    assert ended.delete_time == at(1)
    assert await store.block(block.id) == ended
    assert await store.block_as_of(block.id, at(1)) is None
    assert await store.block_as_of(block.id, at(0.9)) == replace(
        block, agent_ids=("agent-a", "agent-b")
    )
    assert (await store.labelled("agent-a", "human")).labels == ()
    assert (await store.agent_memory("agent-b", "")).blocks == []
    assert await do(store, lambda unit: unit.lock_block(block.id)) is None
    assert await do(store, lambda unit: unit.labels([block.id])) == {}
    assert await store.project_blocks("", "", 9) == []
    assert await store.project_blocks("human", "", 9) == []
    assert await store.project_blocks("", "", 9, deleted=True) == [ended]
    assert await store.project_blocks("human", "", 9, deleted=True) == [ended]
    versions = await store.versions(block.id, 0, 9)
    assert [(version.revision, version.value, version.deleted) for version in versions] == [
        (2, "text", True),
        (1, "text", False),
    ]


async def test_restored_block_is_detached_and_survives_its_agent(
    store: PostgresBlockStore,
) -> None:
    block = await insert(store, "human", "text", agent="agent-a", made_for="agent-a")
    ended = await end(store, block, at(1))
    back = replace(next_revision(ended, at(2)), delete_time=None)
    await do(store, lambda unit: unit.update(back, by("revert", at(2)), response=b""))
    assert await store.block(block.id) == back
    assert (await store.agent_memory("agent-a", "")).blocks == []
    # A block that somebody restored is kept when the agent is deleted.
    await do(store, lambda unit: unit.detach_all("agent-a", at(3)))
    assert await do(store, lambda unit: unit.made_for("agent-a")) == []


async def test_an_edit_that_waited_for_a_deletion_finds_no_block(
    store: PostgresBlockStore,
) -> None:
    block = await insert(store, "human", "text", agent="agent-a")
    locked = asyncio.Event()

    async def delete(unit: Unit) -> None:
        newest = await unit.lock_block(block.id)
        assert newest is not None
        locked.set()
        await asyncio.sleep(0.2)
        await unit.update(deleted_block(newest, at(1)), by(DELETE, at(1)), response=b"")

    async def edit(unit: Unit) -> tuple[Block | None, Block | None]:
        await locked.wait()
        labelled = await unit.lock_labelled("agent-a", "human")
        return labelled.block, await unit.lock_block(block.id)

    _, result = await asyncio.gather(do(store, delete), do(store, edit))
    assert result == (None, None)


async def test_memory_can_be_shown_as_of_an_earlier_time(store: PostgresBlockStore) -> None:
    human = await insert(store, "human", "h1", agent="agent-a")
    notes = await insert(store, "notes", "n1", agent="agent-a", time=at(1))
    human = await write(store, human, at(2), value="h2")
    await detach(store, "agent-a", human, at(3))
    ended = await end(store, notes, at(4))
    await attach(store, "agent-a", human, at(5))
    # After the deletion another block gets the label.
    await insert(store, "notes", "other", agent="agent-a", time=at(6))
    assert await seen(store, "agent-a", at(-1)) == []
    assert await seen(store, "agent-a", NOW) == [("human", "h1")]
    assert await seen(store, "agent-a", at(1)) == [("human", "h1"), ("notes", "n1")]
    assert await seen(store, "agent-a", at(2.5)) == [("human", "h2"), ("notes", "n1")]
    assert await seen(store, "agent-a", at(3)) == [("notes", "n1")]
    assert await seen(store, "agent-a", at(4)) == []
    assert await seen(store, "agent-a", at(5)) == [("human", "h2")]
    assert await seen(store, "agent-a", at(6)) == [("human", "h2"), ("notes", "other")]
    assert ended.agent_ids == ()


async def test_a_past_memory_has_the_fingerprint_that_it_had_then(
    store: PostgresBlockStore,
) -> None:
    block = await insert(store, "human", "h1", agent="agent-a")
    await insert(store, "notes", "n1", agent="agent-a")
    present = await store.agent_memory("agent-a", "")
    await write(store, block, at(1), value="h2")
    past = await store.agent_memory_as_of("agent-a", NOW)
    assert past == present
    assert (await store.agent_memory_as_of("agent-b", NOW)).fingerprint == (
        (await store.agent_memory("agent-b", "")).fingerprint
    )


async def test_a_past_memory_has_the_labels_of_that_time(store: PostgresBlockStore) -> None:
    block = await insert(store, "old", agent="agent-a")
    renamed = replace(next_revision(block, at(1)), label="new")
    await do(store, lambda unit: unit.update(renamed, by("rename", at(1)), response=b""))
    assert await seen(store, "agent-a", NOW) == [("old", "")]
    assert await seen(store, "agent-a", at(1)) == [("new", "")]


async def test_past_memories_are_read_by_pages(store: PostgresBlockStore) -> None:
    for label in ("one", "two", "three"):
        block = await insert(store, label, agent="agent-a")
        await detach(store, "agent-a", block, at(1))
    first = await store.agent_blocks("agent-a", "", 0, 2, NOW)
    assert [block.label for _, block in first] == ["one", "two"]
    rest = await store.agent_blocks("agent-a", "", first[-1][0], 2, NOW)
    assert [block.label for _, block in rest] == ["three"]
    assert [block.label for _, block in await store.agent_blocks("agent-a", "two", 0, 9, NOW)] == [
        "two"
    ]
    assert await store.agent_blocks("agent-a", "", 0, 9) == []
    assert first[0][1].agent_ids == ("agent-a",)


async def test_the_past_memory_of_a_released_agent_stays_readable(
    store: PostgresBlockStore,
) -> None:
    block = await insert(store, "human", "text", agent="agent-a", made_for="agent-a")
    await do(store, lambda unit: unit.detach_all("agent-a", at(1)))
    assert await do(store, lambda unit: unit.made_for("agent-a")) == [replace(block, agent_ids=())]
    assert await seen(store, "agent-a", NOW) == [("human", "text")]
    assert await seen(store, "agent-a", at(1)) == []


async def test_a_purge_deletes_the_past_versions(store: PostgresBlockStore) -> None:
    block = await insert(store, "human", "text", agent="agent-a")
    await detach(store, "agent-a", block, at(1))
    await end(store, block, at(2))
    assert await do(store, lambda unit: unit.purge(block.id))
    assert await seen(store, "agent-a", NOW) == []
    assert await store.block_as_of(block.id, NOW) is None


async def test_several_blocks_change_in_one_statement(
    store: PostgresBlockStore, database: Database
) -> None:
    one = await insert(store, "one", "1", agent="agent-a")
    two = await insert(store, "two", "2", agent="agent-a")
    changes = [
        (replace(next_revision(one, at(1)), value="11"), by("patch", at(1), reason="a")),
        (deleted_block(two, at(1)), by(DELETE, at(1), reason="b")),
    ]
    with database.statistics.record() as texts:
        await do(store, lambda unit: unit.update_all(changes, response=b"answer"), "request-1")
    assert len(texts) == 1
    assert await seen(store, "agent-a", at(1)) == [("one", "11")]
    assert [(await store.versions(block.id, 0, 1))[0].authorship for block in (one, two)] == [
        authorship for _, authorship in changes
    ]
    with pytest.raises(ReplayedError):
        await do(store, lambda unit: unit.check_request(), "request-1")


async def test_several_changes_are_stored_together_or_not_at_all(store: PostgresBlockStore) -> None:
    one = await insert(store, "one", "1", agent="agent-a")
    two = await insert(store, "two", "2", agent="agent-a")
    changes = [
        (replace(next_revision(one, at(1)), value="11"), by("patch", at(1))),
        (replace(next_revision(two, at(1)), label="one"), by("rename", at(1))),
    ]
    with pytest.raises(AlreadyExistsError):
        await do(store, lambda unit: unit.update_all(changes, response=b""))
    assert await store.block(one.id) == one


async def test_locks_return_the_existing_blocks(store: PostgresBlockStore) -> None:
    one = await insert(store, "one", agent="agent-a")
    two = await insert(store, "two", agent="agent-a")
    ended = await end(store, await insert(store, "gone"), at(1))
    blocks, labels = await do(store, lambda unit: unit.lock_all("agent-a", ["two", "one", "x"]))
    assert (blocks, labels) == ({"one": one, "two": two}, ("one", "two"))
    ids = [two.id, ended.id, new_id("block"), one.id]
    locked = await do(store, lambda unit: unit.lock_blocks(ids))
    assert locked == {one.id: one, two.id: two, ended.id: ended}
    assert await do(store, lambda unit: unit.lock_blocks([])) == {}


async def test_concurrent_locks_of_several_blocks_do_not_deadlock(
    store: PostgresBlockStore,
) -> None:
    blocks = [await insert(store, f"label{number}", "", agent="agent-a") for number in range(4)]
    ids, labels = [block.id for block in blocks], [block.label for block in blocks]

    async def by_id(unit: Unit) -> None:
        await add(unit, list((await unit.lock_blocks(ids)).values()))

    async def by_label(unit: Unit) -> None:
        by_name, _ = await unit.lock_all("agent-a", labels[::-1])
        await add(unit, list(by_name.values()))

    async def add(unit: Unit, locked: list[Block]) -> None:
        changes = [
            (replace(next_revision(block, NOW), value=f"{block.value}x"), by("append", NOW))
            for block in locked
        ]
        await unit.update_all(changes, response=b"")

    await asyncio.gather(*(do(store, work) for _ in range(10) for work in (by_id, by_label)))
    assert [block.value for block in (await store.agent_memory("agent-a", "")).blocks] == [
        "x" * 20
    ] * 4


async def test_edits_are_found_by_run_agent_time_and_block(store: PostgresBlockStore) -> None:
    one = await insert(store, "one", "1")
    two = await insert(store, "two", "2", run_id="run-a", agent_id="agent-a", time=at(1))
    one = await write(store, one, at(2), value="b", run_id="run-a", agent_id="agent-a")
    one = await write(store, one, at(3), value="c", run_id="run-b", agent_id="agent-a")
    one = await write(store, one, at(4), value="d", run_id="run-a", agent_id="agent-b")

    async def matching(**selection: Any) -> dict[str, list[int]]:
        edits = await do(store, lambda unit: unit.edits(EditSelection(**selection)))
        return {block_id: list(revisions) for block_id, revisions in edits.items()}

    assert await matching(run_id="run-a") == {one.id: [4, 2], two.id: [1]}
    assert await matching(run_id="run-a", agent_id="agent-a") == {one.id: [2], two.id: [1]}
    assert await matching(run_id="run-a", block_id=two.id) == {two.id: [1]}
    assert await matching(agent_id="agent-a", since=at(2)) == {one.id: [3, 2]}
    assert await matching(block_id=one.id, since=at(3)) == {one.id: [4, 3]}
    assert await matching(run_id="run-z") == {}


async def test_reverts_record_the_undone_revision(store: PostgresBlockStore) -> None:
    block = await insert(store, "one", "1")
    authorship = replace(by("revert", at(1)), undoes="1-1")
    changed = replace(next_revision(block, at(1)), value="2")
    await do(store, lambda unit: unit.update(changed, authorship, response=b""))
    other = await insert(store, "two")
    undone = await do(store, lambda unit: unit.reverts([block.id, other.id]))
    assert undone == {block.id: {2: "1-1"}}
    assert (await store.versions(block.id, 0, 1))[0].authorship == authorship


async def test_versions_are_read_within_a_transaction(store: PostgresBlockStore) -> None:
    block = await insert(store, "one", "1")
    await write(store, block, at(1), value="2")
    versions = await do(store, lambda unit: unit.versions_at(block.id, [0, 1, 2, 3]))
    assert {revision: version.value for revision, version in versions.items()} == {1: "1", 2: "2"}
    assert await do(store, lambda unit: unit.value_at(block.id, 2)) == "2"
    assert await do(store, lambda unit: unit.value_at(block.id, 3)) is None


async def test_an_agent_without_blocks_has_a_memory_too(store: PostgresBlockStore) -> None:
    memory = await store.agent_memory("agent-a", "")
    assert (list(memory.blocks), memory.sizes, memory.has_folders) == ([], {}, False)
    assert memory.fingerprint
    assert await store.knows_agent("agent-a")
    assert not await store.knows_agent("agent-x")


async def test_later_page_of_versions_reads_no_newer_versions(
    database: Database, store: PostgresBlockStore
) -> None:
    block = await insert(store, "notes", "one")
    with database.statistics.record() as statements:
        assert [version.revision for version in await store.versions(block.id, 0, 20)] == [1]
    assert not await store.versions(block.id, 1, 20)
    (statement,) = statements
    plan = await generic_plan_of(database, statement)
    assert re.search(r"Index Cond: .*revision < ", plan), plan
    assert "Filter: (revision" not in plan
