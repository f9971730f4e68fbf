"""The contract of `BlockStore`, on PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from block_records import AUTHORSHIP, NOW, begin, insert, make, once, write
from callers import as_project
from strata.core_memory.domain.blocks import (
    Block,
    EditSelection,
    deleted_block,
)
from strata.core_memory.domain.ports import ReplayedError, Unit
from strata.core_memory.migrations import MIGRATIONS
from strata.core_memory.request_table import REQUESTS
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.protocol.errors import AlreadyExistsError, NotFoundError, Reason
from strata.shared import context
from strata.shared.db import Database
from strata.shared.ids import new_id


@pytest.fixture
async def store(database: Database) -> PostgresBlockStore:
    """The store, with agents a, b and c."""
    store = PostgresBlockStore(database)
    for agent in ("agent-a", "agent-b", "agent-c"):
        await begin(store, agent)
    return store


async def attach(store: PostgresBlockStore, agent: str, *blocks: Block) -> None:
    labels = {block.id: block.label for block in blocks}
    await once(store, lambda unit: unit.attach(agent, labels, NOW))


async def release(store: PostgresBlockStore, agent: str) -> tuple[set[str], set[str]]:
    """Releases an agent; returns its blocks, and those that were deleted with it."""

    async def work(unit: Unit) -> tuple[set[str], set[str]]:
        had = await unit.detach_all(agent, NOW)
        ended = [deleted_block(block, NOW) for block in await unit.made_for(agent)]
        if ended:
            await unit.update_all([(block, AUTHORSHIP) for block in ended], response=b"")
        return set(had), {block.id for block in ended}

    return await once(store, work)


async def test_a_stored_block_is_returned_unchanged(store: PostgresBlockStore) -> None:
    block = make(
        value="tab\t🙂 'quote' \\ :name ",
        metadata={"a": "1", 'b"': "é"},
        read_only=True,
        limit=77,
    )
    await insert(store, block, agent="agent-a")
    assert await store.block(block.id) == replace(block, agent_ids=("agent-a",))
    labelled = await store.labelled("agent-a", "human")
    assert (labelled.block, labelled.labels) == (replace(block, agent_ids=("agent-a",)), ("human",))


async def test_a_missing_block_is_returned_as_none(store: PostgresBlockStore) -> None:
    await insert(store, make("persona"), agent="agent-a")
    assert await store.block(new_id("block")) is None
    labelled = await store.labelled("agent-a", "human")
    assert (labelled.block, labelled.labels) == (None, ("persona",))


async def test_versions_keep_the_text_and_its_authorship(store: PostgresBlockStore) -> None:
    block = await insert(store, make(value="one", metadata={"k": "v"}))
    await write(store, replace(block, value="two", revision=2, label="other"))
    newest, first = await store.versions(block.id, 0, 10)
    assert (newest.revision, newest.value, newest.label) == (2, "two", "other")
    assert (first.revision, first.value, first.label) == (1, "one", "human")
    assert newest.authorship == AUTHORSHIP
    assert (newest.description, newest.limit, newest.read_only) == ("About.", 20_000, False)
    assert newest.metadata == {"k": "v"}
    assert [version.revision for version in await store.versions(block.id, 2, 10)] == [1]
    assert [version.revision for version in await store.versions(block.id, 0, 1)] == [2]
    assert await store.values(block.id, [1, 2, 3]) == {1: "one", 2: "two"}


async def test_a_block_can_be_shown_as_of_an_earlier_time(store: PostgresBlockStore) -> None:
    block = await insert(store, make(value="one", limit=50))
    later = NOW + timedelta(hours=1)
    changed = replace(block, value="two", limit=60, revision=2, update_time=later)
    authorship = replace(AUTHORSHIP, time=later)
    await once(store, lambda unit: unit.update(changed, authorship, response=b""))
    assert await store.block_as_of(block.id, later - timedelta(seconds=1)) == block
    assert await store.block_as_of(block.id, later) == changed
    assert await store.block_as_of(block.id, NOW - timedelta(seconds=1)) is None


async def test_a_label_is_unique_for_an_agent(store: PostgresBlockStore) -> None:
    await insert(store, make("human"), agent="agent-a")
    other = await insert(store, make("human"))
    third = await insert(store, make("third"), agent="agent-a")
    with pytest.raises(AlreadyExistsError) as caught:
        await attach(store, "agent-a", other)
    assert caught.value.metadata["name"] == "human"
    with pytest.raises(AlreadyExistsError):
        await insert(store, make("human"), agent="agent-a")
    with pytest.raises(AlreadyExistsError):
        await write(store, replace(third, label="human", revision=2))
    assert [stored.label for _, stored in await store.agent_blocks("agent-a", "", 0, 10)] == [
        "human",
        "third",
    ]


async def test_a_refused_block_is_not_stored_unattached(store: PostgresBlockStore) -> None:
    await insert(store, make("notes"), agent="agent-a")
    with pytest.raises(AlreadyExistsError):
        await insert(store, make("notes"), agent="agent-a")
    assert len(await store.project_blocks("notes", "", 10)) == 1


async def test_renaming_a_shared_block_changes_its_label_for_every_agent(
    store: PostgresBlockStore,
) -> None:
    block = await insert(store, make("human"), agent="agent-a")
    await attach(store, "agent-b", block)
    await write(store, replace(block, label="friend", revision=2))
    for agent in ("agent-a", "agent-b"):
        assert (await store.labelled(agent, "friend")).labels == ("friend",)


async def test_blocks_are_listed_in_the_order_of_attachment(store: PostgresBlockStore) -> None:
    blocks = [await insert(store, make(label)) for label in ("c", "a", "b")]
    await attach(store, "agent-a", blocks[2], blocks[0])
    await attach(store, "agent-a", blocks[0], blocks[1])
    memory = await store.agent_memory("agent-a", "")
    assert [block.label for block in memory.blocks] == ["b", "c", "a"]
    rows = await store.agent_blocks("agent-a", "", 0, 2)
    assert [stored.label for _, stored in rows] == ["b", "c"]
    rest = await store.agent_blocks("agent-a", "", rows[-1][0], 2)
    assert [stored.label for _, stored in rest] == ["a"]
    assert [stored.label for _, stored in await store.agent_blocks("agent-a", "c", 0, 9)] == ["c"]


async def test_edits_do_not_move_blocks(store: PostgresBlockStore) -> None:
    blocks = [await insert(store, make(label), agent="agent-a") for label in ("c", "a", "b")]
    for block in (blocks[1], blocks[0]):
        await write(store, replace(block, label=f"new_{block.label}", value="new", revision=2))
    memory = await store.agent_memory("agent-a", "")
    assert [block.label for block in memory.blocks] == ["new_c", "new_a", "b"]


async def test_blocks_of_the_project_are_listed_by_id(store: PostgresBlockStore) -> None:
    blocks = [await insert(store, make(label)) for label in ("x", "y", "x")]
    ids = [block.id for block in blocks]
    assert [block.id for block in await store.project_blocks("", "", 10)] == ids
    assert [block.id for block in await store.project_blocks("", ids[0], 1)] == ids[1:2]
    assert [block.id for block in await store.project_blocks("x", ids[0], 10)] == ids[2:]


async def test_a_memory_with_a_known_fingerprint_is_returned_without_values(
    store: PostgresBlockStore,
) -> None:
    block = await insert(store, make(value="text 🙂"), agent="agent-a")
    full = await store.agent_memory("agent-a", "")
    assert [block.value for block in full.blocks] == ["text 🙂"]
    assert full.sizes == {"human": 6}
    known = await store.agent_memory("agent-a", full.fingerprint)
    assert (known.fingerprint, known.sizes) == (full.fingerprint, full.sizes)
    assert [block.value for block in known.blocks] == [""]
    await write(store, replace(block, value="changed", revision=2))
    assert (await store.agent_memory("agent-a", full.fingerprint)).blocks[0].value == "changed"


async def test_a_snapshot_does_not_see_concurrent_changes(store: PostgresBlockStore) -> None:
    block = await insert(store, make(value="old"), agent="agent-a")
    async with store.snapshot() as snapshot:
        before = await snapshot.agent_memory("agent-a", "")
        await write(store, replace(block, value="new", revision=2))
        again = await snapshot.agent_memory("agent-a", "")
    assert [block.value for block in again.blocks] == ["old"]
    assert again.fingerprint == before.fingerprint
    assert [block.value for block in (await store.agent_memory("agent-a", "")).blocks] == ["new"]


async def test_the_fingerprint_depends_on_the_blocks_and_their_order(
    store: PostgresBlockStore,
) -> None:
    one, two = await insert(store, make("one")), await insert(store, make("two"))
    await attach(store, "agent-a", one, two)
    await attach(store, "agent-b", two, one)
    await attach(store, "agent-c", one)
    names = {(await store.agent_memory(f"agent-{name}", "")).fingerprint for name in "abcd"}
    assert len(names) == 4


async def test_a_repeated_request_gets_the_stored_answer(store: PostgresBlockStore) -> None:
    block = await insert(store, make(), request="request-1")
    with pytest.raises(ReplayedError) as caught:
        await insert(store, make("other"), request="request-1")
    assert caught.value.response == block.id.encode()
    assert len(await store.project_blocks("", "", 10)) == 1


@pytest.mark.parametrize("locking", ["check", "block", "label"])
async def test_a_request_id_cannot_be_reused_for_another_payload(
    store: PostgresBlockStore, locking: str
) -> None:
    block = await insert(store, make(), agent="agent-a", request="request-1")

    async def work(unit: Unit) -> None:
        if locking == "check":
            await unit.check_request()
        elif locking == "block":
            await unit.lock_block(block.id)
        else:
            await unit.lock_labelled("agent-a", "missing")

    with pytest.raises(AlreadyExistsError) as caught:
        await once(store, work, "request-1", b"other")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    with pytest.raises(ReplayedError):
        await once(store, work, "request-1", b"same")


async def test_concurrent_requests_with_one_id_take_effect_once(store: PostgresBlockStore) -> None:
    block = await insert(store, make(value="0"), agent="agent-a")

    async def work(unit: Unit) -> str:
        labelled = await unit.lock_labelled("agent-a", "human")
        assert labelled.block is not None
        await asyncio.sleep(0.05)
        value = f"{int(labelled.block.value) + 1}"
        changed = replace(labelled.block, value=value, revision=labelled.block.revision + 1)
        await unit.update(changed, AUTHORSHIP, response=b"answer")
        return value

    results = await asyncio.gather(
        *(once(store, work, "request-1", b"same") for _ in range(4)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["ReplayedError"] * 3 + ["str"]
    stored = await store.block(block.id)
    assert stored is not None
    assert (stored.value, stored.revision) == ("1", 2)


async def test_writers_of_one_block_wait_for_each_other(store: PostgresBlockStore) -> None:
    block = await insert(store, make(value="0"), agent="agent-a")

    async def work(unit: Unit) -> None:
        newest = await unit.lock_block(block.id)
        assert newest is not None
        value = f"{int(newest.value) + 1}"
        await unit.update(
            replace(newest, value=value, revision=newest.revision + 1), AUTHORSHIP, response=b""
        )

    await asyncio.gather(*(once(store, work) for _ in range(20)))
    stored = await store.block(block.id)
    assert stored is not None
    assert (stored.value, stored.revision) == ("20", 21)
    assert [version.revision for version in await store.versions(block.id, 0, 50)] == list(
        range(21, 0, -1)
    )


async def test_purging_a_block_deletes_its_attachments_and_versions(
    store: PostgresBlockStore,
) -> None:
    block = await insert(store, make(), agent="agent-a")
    assert await once(store, lambda unit: unit.purge(block.id))
    assert not await once(store, lambda unit: unit.purge(block.id))
    assert (await store.agent_memory("agent-a", "")).blocks == []
    assert await store.versions(block.id, 0, 10) == []


async def test_a_block_deleted_meanwhile_is_not_attached(store: PostgresBlockStore) -> None:
    block = await insert(store, make())

    async def work(unit: Unit) -> bool:
        if await unit.lock_block(block.id) is None:
            return False
        await unit.attach("agent-a", {block.id: "human"}, NOW)
        return True

    async def delete(unit: Unit) -> None:
        # Like the service: the lock makes the deletion see an agent that was just attached.
        locked = await unit.lock_block(block.id)
        assert locked is not None
        await unit.update(deleted_block(locked, NOW), AUTHORSHIP, response=b"")

    attached, _ = await asyncio.gather(once(store, work), once(store, delete))
    assert attached in (True, False)
    assert (await store.agent_memory("agent-a", "")).blocks == []


async def test_releasing_an_agent_deletes_only_blocks_without_other_agents(
    store: PostgresBlockStore,
) -> None:
    own = await insert(store, make("own"), agent="agent-a", made_for="agent-a")
    shared = await insert(store, make("shared"), agent="agent-a", made_for="agent-a")
    foreign = await insert(store, make("foreign"), agent="agent-a")
    dropped = await insert(store, make("dropped"), made_for="agent-a")
    await attach(store, "agent-b", shared)
    assert await release(store, "agent-a") == (
        {own.id, shared.id, foreign.id},
        {own.id, dropped.id},
    )
    assert [block.id for block in await store.project_blocks("", "", 10)] == [
        shared.id,
        foreign.id,
    ]
    assert [stored.label for _, stored in await store.agent_blocks("agent-b", "", 0, 9)] == [
        "shared"
    ]
    assert await release(store, "agent-a") == (set(), set())


async def test_an_agent_is_registered_once(store: PostgresBlockStore) -> None:
    assert await begin(store, "agent-d")
    assert not await begin(store, "agent-d")
    await release(store, "agent-d")
    assert not await once(store, lambda unit: unit.knows_agent("agent-d"))
    assert await begin(store, "agent-d")


async def test_a_block_cannot_be_attached_to_an_unknown_agent(
    store: PostgresBlockStore,
) -> None:
    kept = await insert(store, make())
    for refused in (insert(store, make("b"), agent="agent-x"), attach(store, "agent-x", kept)):
        with pytest.raises(NotFoundError) as caught:
            await refused
        assert caught.value.reason is Reason.AGENT_NOT_FOUND
    await release(store, "agent-a")
    with pytest.raises(NotFoundError):
        await attach(store, "agent-a", kept)


async def test_other_projects_cannot_read_or_change_anything(store: PostgresBlockStore) -> None:
    block = await insert(store, make(value="mine"), agent="agent-a", request="request-1")
    with context.use(as_project()):
        assert await store.block(block.id) is None
        assert await store.block_as_of(block.id, NOW) is None
        assert await store.versions(block.id, 0, 10) == []
        assert await store.values(block.id, [1]) == {}
        assert (await store.agent_memory("agent-a", "")).blocks == []
        assert (await store.labelled("agent-a", "human")).labels == ()
        assert await store.project_blocks("", "", 10) == []
        assert await once(store, lambda unit: unit.lock_block(block.id)) is None
        assert await once(store, lambda unit: unit.lock_blocks([block.id])) == {}
        assert await once(store, lambda unit: unit.lock_all("agent-a", ["human"])) == ({}, ())
        assert await once(store, lambda unit: unit.value_at(block.id, 1)) is None
        assert await once(store, lambda unit: unit.versions_at(block.id, [1])) == {}
        assert await once(store, lambda unit: unit.edits(EditSelection(run_id="run-1"))) == {}
        assert not await once(store, lambda unit: unit.purge(block.id))
        assert not await once(store, lambda unit: unit.detach("agent-a", block.id, NOW))
        assert (await store.agent_memory_as_of("agent-a", NOW)).blocks == []
        assert not await store.knows_agent("agent-a")
        assert await once(store, lambda unit: unit.labels([block.id])) == {}
        assert await release(store, "agent-a") == (set(), set())
        await insert(store, make(), request="request-1")
    assert (await store.labelled("agent-a", "human")).block is not None


async def test_row_security_hides_rows_of_other_projects(
    store: PostgresBlockStore, database: Database
) -> None:
    async def counts() -> list[int]:
        tables = (
            *("blocks", "attachments", "block_versions", "prepared_agents", "requests"),
            "attachment_history",
        )
        async with database.transaction(read_only=True) as connection:
            return [
                await connection.driver.fetchval(f"SELECT count(*) FROM core_memory.{table}")
                for table in tables
            ]

    await insert(store, make(), agent="agent-a", request="request-1")
    past = await insert(store, make("past"), agent="agent-a")
    await once(store, lambda unit: unit.detach("agent-a", past.id, NOW))
    assert await counts() == [2, 1, 2, 3, 1, 1]
    with context.use(as_project()):
        assert await counts() == [0] * 6


async def test_worker_deletes_old_requests_and_cannot_read_responses(
    databases: Any,
) -> None:
    # It deletes the requests of every project, so it must not run in the database of the other
    # tests.
    urls = await databases.of(MIGRATIONS)
    service, worker = Database(urls.service_url), Database(urls.worker_url)
    store = PostgresBlockStore(service)
    try:
        for number in range(3):
            await insert(store, make(f"label{number}"), request=f"request-{number}")
        assert await REQUESTS.delete_expired(worker, timedelta(days=1)) == 0
        assert await REQUESTS.delete_expired(worker, timedelta(0)) == 3
        with pytest.raises(Exception, match="permission denied"):
            async with worker.system_transaction() as connection:
                await connection.driver.fetch("SELECT response FROM core_memory.requests")
        await insert(store, make("again"), request="request-0")
    finally:
        await worker.close()
        await service.close()


async def test_each_operation_costs_few_statements(
    store: PostgresBlockStore, database: Database
) -> None:
    await insert(store, make(value="x"), agent="agent-a")

    async def edit(unit: Unit) -> None:
        labelled = await unit.lock_labelled("agent-a", "human")
        assert labelled.block is not None
        await unit.update(
            replace(labelled.block, value="y", revision=2), AUTHORSHIP, response=b"answer"
        )

    with database.statistics.record() as texts:
        await once(store, edit, "request-1", b"same")
    assert len(texts) == 2
    with database.statistics.record() as texts:
        await store.agent_memory("agent-a", "")
    assert len(texts) == 1
