"""The contract of retention, on PostgreSQL and the real index, with the clock moved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from callers import as_project
from recall_conversations import Talk, ids
from strata.protocol.errors import AbortedError, NotFoundError, Reason
from strata.recall.domain.messages import Message, MessageFilter, Step
from strata.recall.domain.retention_worker import RetentionWorker
from strata.recall.domain.search import SearchQuery
from strata.recall.search.backlogs import DeletedMessageBacklog, MessageBacklog
from strata.recall.search.index import MESSAGES, MessageIndex
from strata.recall.store import (
    DeletedMessages,
    PendingMessages,
    PostgresOldMessages,
    PostgresRetentionSettings,
)
from strata.shared import context
from strata.shared.clock import ManualClock
from strata.shared.db import Database, sql
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole
from strata.shared.search.embedding import Embedder
from strata.shared.search.fusion import FusionConfig
from strata.shared.search.indexing.indexer import Indexer
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantConfig, QdrantIndex
from strata.shared.search.vectors.sparse import SparseEncoder
from strata.shared.telemetry import Telemetry
from strata.standalone.vectors import EmbeddedVectors

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DAY = 86_400.0


class House:
    """The store, the clock and the worker."""

    def __init__(self, service: Database, worker: Database) -> None:
        self.service, self.worker = service, worker
        self.clock = ManualClock(NOW)
        self.settings = PostgresRetentionSettings(service)
        old = PostgresOldMessages(service, worker)
        self.retention = RetentionWorker(old, self.clock, batch=3, every=1)

    async def keep(self, days: int) -> None:
        await self.settings.set(days, self.clock.now())

    async def days_later(self, days: float) -> int:
        """Moves the clock and deletes old messages."""
        self.clock.advance(days * DAY)
        return await self.retention.round()

    async def talk(self, agent: str = "") -> Talk:
        return await Talk(self.service, agent).open()


@pytest.fixture
def house(database: Database, worker: Database) -> House:
    return House(database, worker)


async def log(talk: Talk) -> list[Message]:
    page = await talk.log.page(MessageFilter(agent_id=talk.agent), 500, None)
    return [m for m in page.messages if m.role is not MessageRole.SYSTEM]


def flat(*turns: Sequence[Message]) -> list[str]:
    return [message.id for turn in turns for message in turn]


async def test_messages_are_kept_permanently_by_default(house: House) -> None:
    talk = await house.talk()
    old = await talk.turn("old")
    await talk.compact()
    kept = await house.settings.get()
    assert (kept.days, kept.update_time) == (0, None)
    assert await house.days_later(10_000) == 0
    await house.keep(7)
    await house.keep(0)
    assert await house.days_later(10_000) == 0
    assert set(flat(old)) <= set(ids(await log(talk)))


async def test_retention_is_set_per_project_and_an_equal_value_keeps_its_update_time(
    house: House,
) -> None:
    first = await house.settings.set(30, NOW)
    again = await house.settings.set(30, NOW + timedelta(days=1))
    assert (first.days, first.update_time) == (30, NOW)
    assert again == first
    changed = await house.settings.set(9, NOW + timedelta(days=2))
    assert (changed.days, changed.update_time) == (9, NOW + timedelta(days=2))
    assert await house.settings.get() == changed
    other = as_project()
    with context.use(other):
        assert (await house.settings.get()).days == 0


async def test_old_messages_outside_of_windows_are_deleted(house: House) -> None:
    await house.keep(30)
    talk = await house.talk()
    turns = [await talk.turn(f"turn {n}") for n in range(6)]
    await talk.compact(*turns[5])
    summary = (await talk.window())[1]
    assert await house.days_later(29) == 0
    assert await house.days_later(2) == 8
    # The window holds the summary and the last turn. The ends of the summary's range are kept too,
    # because a listing may begin there.
    ends = [turns[0][0].id, turns[4][1].id]
    assert ids(await log(talk)) == [ends[0], ends[1], *ids(turns[5]), summary.id]
    assert ids(await talk.window())[1:] == [summary.id, *ids(turns[5])]
    assert await house.retention.round() == 0


async def test_a_summary_is_deleted_with_its_boundary_messages(house: House) -> None:
    await house.keep(30)
    talk = await house.talk()
    one, two, three = [await talk.turn(name) for name in ("one", "two", "three")]
    first = await talk.compact(*two, *three)
    await talk.compact(*three)
    second = (await talk.window())[1]
    assert await house.days_later(31) == 3
    # The second summary begins where the first one did, so only the ends of its range are left.
    assert ids(await log(talk)) == [one[0].id, two[1].id, *ids(three), second.id]
    assert first.messages[1].id not in ids(await log(talk))
    async with house.service.transaction() as connection:
        left = await connection.execute(sql("SELECT sequence FROM recall.compactions"))
        assert [row.sequence for row in left] == [second.sequence]


async def test_pinned_messages_are_kept_until_they_are_unpinned(house: House) -> None:
    await house.keep(30)
    talk = await house.talk()
    one, two, three = [await talk.turn(name) for name in ("one", "two", "three")]
    await talk.compact(*three)
    await talk.pins.set(two[0].id, pinned=True)
    # Pinned and in the window; `two[1]` is the end of the summary.
    assert await house.days_later(31) == 1
    left = ids(await log(talk))
    assert one[1].id not in left
    assert {one[0].id, *ids(two)} <= set(left)
    await talk.pins.set(two[0].id, pinned=False)
    assert await house.retention.round() == 0, "the message is still in the window"


async def test_a_pinned_message_outside_of_the_window_is_kept(house: House) -> None:
    await house.keep(30)
    talk = await house.talk()
    [asked, answer] = await talk.turn("remember this")
    await talk.pins.set(asked.id, pinned=True)
    run = new_id("run")
    await talk.windows.begin_turn(talk.id, talk.agent, run, 1, [])
    # A step may remove the oldest messages from the window, also pinned ones.
    reply = replace(answer, id=new_id("message"), run_id=run, sequence=-1)
    await talk.windows.commit_step(Step(talk.id, talk.agent, run, 1, 1, (reply,), evict_count=2))
    assert asked.id not in ids(await talk.window())
    assert await house.days_later(31) == 1
    assert ids(await log(talk)) == [asked.id, reply.id]


async def test_call_and_return_are_deleted_together_or_not_at_all(house: House) -> None:
    await house.keep(30)
    talk = await house.talk()
    await talk.turn("first")
    asked, call, reply = await talk.turn("use it", calls=1)
    await talk.turn("last")
    newest = await talk.turn("newest")
    await talk.compact(*newest)
    async with house.service.transaction() as connection:
        later = {"project": context.current_project(), "id": reply.id}
        await connection.execute(
            sql(
                "UPDATE recall.messages SET create_time = create_time + interval '1 day'"
                " WHERE project_id = :project AND id = :id"
            ),
            later,
        )
    await house.days_later(30.5)
    left = ids(await log(talk))
    assert asked.id not in left
    assert {call.id, reply.id} <= set(left)
    assert await house.days_later(1) == 2
    assert not {call.id, reply.id} & set(ids(await log(talk)))


async def test_retention_keeps_messages_of_forks(house: House) -> None:
    await house.keep(30)
    talk = await house.talk()
    turns = [await talk.turn(f"turn {n}") for n in range(3)]
    fork = await talk.fork(turns[1][1].id)
    before = await fork.window()
    newest = await talk.turn("newest")
    await talk.compact(*newest)
    assert await house.days_later(31) > 0
    assert await fork.window() == before
    assert ids(await fork.turn("go on")) == ids(await fork.window())[-2:]
    assert [m.copied_from_id for m in before][1:] == flat(turns[0], turns[1])


async def test_messages_of_other_projects_and_agents_are_kept(house: House) -> None:
    await house.keep(30)
    talk = await house.talk()
    await talk.turn("old")
    await talk.turn("older")
    await talk.compact()
    stranger = as_project()
    with context.use(stranger):
        theirs = await house.talk()
        await theirs.turn("old")
        await theirs.turn("older")
        await theirs.compact()
        before = await log(theirs)
    assert await house.days_later(31) == 2
    with context.use(stranger):
        assert await log(theirs) == before


async def test_pinning_a_deleted_message_is_not_found(house: House) -> None:
    talk = await house.talk()
    one = await talk.turn("one")
    await talk.turn("two")
    await talk.compact()
    async with house.service.transaction() as connection:
        mine = {"conversation": talk.id, "id": one[1].id}
        lock = "SELECT 1 FROM recall.windows WHERE conversation_id = :conversation FOR UPDATE"
        await connection.execute(sql(lock), mine)
        pin = asyncio.create_task(talk.pins.set(one[1].id, pinned=True))
        waiting = sql("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while not (await connection.execute(waiting)).scalar():
            await asyncio.sleep(0.02)
        await connection.execute(sql("DELETE FROM recall.messages WHERE id = :id"), mine)
    with pytest.raises(NotFoundError):
        await pin
    assert one[1].id not in ids(await talk.window())


async def test_concurrent_pins_and_retention_leave_a_consistent_window(house: House) -> None:
    await house.keep(30)
    talk = await house.talk()
    turns = [await talk.turn(f"turn {n}") for n in range(8)]
    await talk.compact(*turns[7])
    house.clock.advance(31 * DAY)
    old = [m for turn in turns[1:6] for m in turn]
    done = await asyncio.gather(
        house.retention.round(),
        *(talk.pins.set(m.id, pinned=True) for m in old),
        house.retention.round(),
        return_exceptions=True,
    )
    window = await talk.window()  # Fails if the window names a message that is not there.
    pinned = [
        m.id for m, outcome in zip(old, done[1:], strict=False) if isinstance(outcome, Message)
    ]
    assert set(pinned) <= set(ids(window))


async def turns_of(house: House, talk: Talk) -> set[str]:
    async with house.service.transaction() as connection:
        rows = await connection.execute(
            sql("SELECT run_id FROM recall.turns WHERE agent_id = :agent"), {"agent": talk.agent}
        )
        return {row.run_id for row in rows}


async def begun(house: House, *, days_ago: float = 0.0) -> None:
    """Sets the start of all turns to the clock of the test; the database writes its own time."""
    at = {"at": house.clock.now() - timedelta(days=days_ago), "project": context.current_project()}
    async with house.service.transaction() as connection:
        await connection.execute(
            sql("UPDATE recall.turns SET begin_time = :at WHERE project_id = :project"), at
        )


async def test_turn_is_deleted_with_its_last_message(house: House) -> None:
    await house.keep(30)
    talk = await house.talk()
    # More turns than a batch has, and the end of a summary's range among the first.
    turns = [await talk.turn(f"turn {n}") for n in range(9)]
    await talk.compact(*turns[7], *turns[8])
    await begun(house)
    runs = [turn[0].run_id for turn in turns]
    assert await turns_of(house, talk) == set(runs)
    await house.days_later(29)
    assert await turns_of(house, talk) == set(runs)
    assert await house.days_later(2) == 12
    # Of the first and of the seventh turn one message is left; the other turns are in the window.
    assert await turns_of(house, talk) == {runs[0], runs[6], runs[7], runs[8]}


async def test_project_without_retention_keeps_its_turns(house: House) -> None:
    talk = await house.talk()
    run = new_id("run")
    await talk.windows.begin_turn(talk.id, talk.agent, run, 1, [])
    later = await talk.turn("later")
    await begun(house)
    await house.days_later(10_000)
    assert await turns_of(house, talk) == {run, later[0].run_id}


async def test_turn_is_kept_for_a_week_at_least(house: House) -> None:
    await house.keep(1)
    talk = await house.talk()
    turns = [await talk.turn(f"turn {n}") for n in range(4)]
    await talk.compact(*turns[3])
    await begun(house)
    middle = turns[1][0].run_id
    assert await house.days_later(6.9) == 4
    assert middle in await turns_of(house, talk)
    with pytest.raises(AbortedError) as late:
        await talk.windows.begin_turn(talk.id, talk.agent, middle, 9, [])
    assert late.value.reason is Reason.STALE_ATTEMPT
    await house.days_later(0.2)
    assert middle not in await turns_of(house, talk)


async def test_turn_of_the_active_run_is_kept(house: House) -> None:
    await house.keep(1)
    talk = await house.talk()
    stranded, running = new_id("run"), new_id("run")
    # Neither run has a message: one was interrupted, the other one waits for years.
    await talk.windows.begin_turn(talk.id, talk.agent, stranded, 1, [])
    await talk.windows.begin_turn(talk.id, talk.agent, running, 1, [])
    await begun(house)
    await house.days_later(1_000)
    assert await turns_of(house, talk) == {running}
    # The next attempt continues, and fences the previous one.
    resumed = await talk.windows.begin_turn(talk.id, talk.agent, running, 2, [])
    assert resumed.committed_steps == 0
    late = Step(talk.id, talk.agent, running, 1, 1, ())
    with pytest.raises(AbortedError):
        await talk.windows.commit_step(late)
    await talk.windows.commit_step(replace(late, attempt=2))


async def test_turns_of_other_projects_and_agents_are_kept(house: House) -> None:
    stranger = as_project()
    with context.use(stranger):
        theirs = await house.talk()
        for _ in range(2):
            await theirs.windows.begin_turn(theirs.id, theirs.agent, new_id("run"), 1, [])
        await begun(house)
        before = await turns_of(house, theirs)
    await house.keep(30)
    talks = [await house.talk() for _ in range(2)]
    for talk in talks:
        for _ in range(5):
            await talk.windows.begin_turn(talk.id, talk.agent, new_id("run"), 1, [])
    await begun(house)
    house.clock.advance(31 * DAY)
    # Two replicas run concurrently: the second finds nothing, and there is no deadlock.
    await asyncio.gather(*(house.retention.round() for _ in range(4)))
    assert [len(await turns_of(house, talk)) for talk in talks] == [1, 1]
    with context.use(stranger):
        assert await turns_of(house, theirs) == before


async def test_deleted_messages_are_removed_from_the_index(
    house: House, vectors: EmbeddedVectors, embedder: Embedder
) -> None:
    await house.keep(30)
    # The search returns every message, whether or not it is about parrots.
    config = QdrantConfig(fusion=FusionConfig(floor=0.0))
    engine = QdrantIndex(connect(vectors.url, vectors.api_key), config)
    index = MessageIndex(engine, embedder, SparseEncoder())
    pending = PendingMessages(house.service, house.worker)
    backlog = MessageBacklog(pending, index, Telemetry(), batch=8)
    await backlog.ensure()
    forgotten = DeletedMessages(house.worker, timedelta(0))
    indexer = Indexer([DeletedMessageBacklog(forgotten, index), backlog], poll=1)

    async def settle() -> None:
        while await indexer.index_pending():
            pass

    async def search_ids(words: str) -> list[str]:
        project = context.current_project()
        hits = await index.search(project, SearchQuery(talk.agent, words, 20), [], 20)
        return [hit.document_id for hit in hits]

    talk = await house.talk()
    turns = [await talk.turn(f"the parrot number {n} is green") for n in range(4)]
    await talk.compact(*turns[3])
    await settle()
    assert set(flat(*turns)) <= set(await search_ids("parrot"))
    assert await house.days_later(31) == 4
    # Messages that are deleted before they are indexed must not reappear either.
    await settle()
    gone = {turns[0][1].id, turns[1][0].id, turns[1][1].id, turns[2][0].id}
    assert not gone & set(await search_ids("parrot"))
    assert set(flat(turns[3])) <= set(await search_ids("parrot"))
    assert await forgotten.find(9) == {}
    count = await engine.count(MESSAGES, context.current_project())
    assert count == len(await search_ids("parrot"))
    await engine.close()
