"""The contract of `WindowStore`, on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callers import as_project
from gates import gate, waiting_sessions
from strata.protocol.errors import AbortedError, InvalidArgumentError, NotFoundError, Reason
from strata.recall.domain.messages import Compaction, Message, Step, StoredImage
from strata.recall.store import (
    PostgresMessageStore,
    PostgresPinStore,
    PostgresWindowStore,
    context_windows,
)
from strata.shared import context
from strata.shared.db import Database, sql
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def store(database: Database) -> PostgresWindowStore:
    return PostgresWindowStore(database)


@pytest.fixture
def pins(database: Database) -> PostgresPinStore:
    return PostgresPinStore(database)


@pytest.fixture
def log(database: Database) -> PostgresMessageStore:
    return PostgresMessageStore(database)


def message(role: MessageRole, text: str, **fields: Any) -> Message:
    return Message(
        id=new_id("message"),
        role=role,
        parts=({"type": "text", "text": text},),
        create_time=NOW,
        **fields,
    )


class Conversation:
    """A window with its ids, and short forms for turns in it."""

    def __init__(self, store: PostgresWindowStore) -> None:
        self.store = store
        self.id = new_id("conversation")
        self.agent = new_id("agent")
        self.system = message(MessageRole.SYSTEM, "You remember.")

    async def open(self) -> None:
        await self.store.open(self.id, self.agent, [self.system], "english")

    async def begin(self, run: str, *texts: str, attempt: int = 1, clear: bool = False) -> Any:
        inputs = [message(MessageRole.USER, text, run_id=run) for text in texts]
        return await self.store.begin_turn(self.id, self.agent, run, attempt, inputs, clear=clear)

    def step(self, run: str, number: int, text: str, attempt: int = 1, **fields: Any) -> Step:
        reply = message(MessageRole.ASSISTANT, text, run_id=run, step=number)
        return Step(self.id, self.agent, run, attempt, number, (reply,), **fields)


@pytest.fixture
async def conversation(store: PostgresWindowStore) -> Conversation:
    opened = Conversation(store)
    await opened.open()
    return opened


def texts(messages: Any) -> list[str]:
    return [item.parts[0]["text"] for item in messages]


async def test_clearing_the_window_keeps_the_system_message_and_pinned_steps(
    conversation: Conversation, pins: PostgresPinStore
) -> None:
    await conversation.begin("run-1", "first")
    step = conversation.step("run-1", 1, "called")
    answer = message(MessageRole.TOOL, "returned", run_id="run-1", step=1)
    await conversation.store.commit_step(replace(step, messages=(*step.messages, answer)))
    await conversation.store.commit_step(conversation.step("run-1", 2, "said"))
    await pins.set(step.messages[0].id, pinned=True)
    before = await conversation.store.get(conversation.id)

    start = await conversation.begin("run-2", "second", clear=True)
    assert texts(start.window.messages) == ["You remember.", "called", "returned", "second"]
    assert start.window.revision == before.revision + 1
    assert start.window.message_count == before.message_count + 1
    assert start.window.metadata_stale
    assert await conversation.store.get(conversation.id) == start.window

    await conversation.store.commit_step(conversation.step("run-2", 1, "reply"))
    again = await conversation.begin("run-2", "second", attempt=2, clear=True)
    expected = ["You remember.", "called", "returned", "second", "reply"]
    assert texts(again.window.messages) == expected


async def test_clearing_at_the_first_run_keeps_the_initial_messages(
    store: PostgresWindowStore, pins: PostgresPinStore
) -> None:
    opened = Conversation(store)
    call = {"type": "tool_call", "tool_call_id": "1", "name": "t", "arguments": "{}"}
    returned = {"type": "tool_return", "tool_call_id": "1", "name": "t", "content": "x"}
    boot = [
        replace(message(MessageRole.ASSISTANT, ""), parts=(call,)),
        replace(message(MessageRole.TOOL, ""), parts=(returned,)),
        message(MessageRole.USER, "You have logged in."),
    ]
    await store.open(opened.id, opened.agent, [opened.system, *boot], "english")
    start = await opened.begin(new_id("run"), "first", clear=True)
    assert len(start.window.messages) == 5
    assert not start.window.metadata_stale
    await pins.set(boot[1].id, pinned=True)
    start = await opened.begin(new_id("run"), "second", clear=True)
    kept = [opened.system.id, boot[0].id, boot[1].id, start.inputs[0].id]
    assert [message.id for message in start.window.messages] == kept


async def test_clearing_the_window_keeps_an_approval_request_until_it_has_returns(
    conversation: Conversation, pins: PostgresPinStore
) -> None:
    store = conversation.store
    first, second = new_id("run"), new_id("run")
    await conversation.begin(first, "ask")
    asking = conversation.step(first, 1, "may I")
    requested = replace(asking.messages[0], role=MessageRole.APPROVAL)
    await store.commit_step(replace(asking, messages=(requested,)))
    # Neither a failed run nor another one removes it from the window.
    await conversation.begin(new_id("run"), "failed", clear=True)
    start = await conversation.begin(second, "go on", clear=True)
    expected = ["You remember.", "ask", "may I", "failed", "go on"]
    assert texts(start.window.messages) == expected
    settled = conversation.step(second, 1, "called")
    returned = message(MessageRole.TOOL, "returned", run_id=second, step=1)
    await store.commit_step(replace(settled, messages=(*settled.messages, returned)))
    with pytest.raises(InvalidArgumentError):
        await pins.set(requested.id, pinned=True)
    start = await conversation.begin(new_id("run"), "next", clear=True)
    assert texts(start.window.messages) == ["You remember.", "next"]


async def test_clearing_at_the_first_run_does_not_mark_the_metadata_as_stale(
    conversation: Conversation,
) -> None:
    start = await conversation.begin("run-1", "first", clear=True)
    assert texts(start.window.messages) == ["You remember.", "first"]
    assert not start.window.metadata_stale


async def test_opening_a_window_twice_keeps_the_first_one(conversation: Conversation) -> None:
    again = await conversation.store.open(
        conversation.id, conversation.agent, [message(MessageRole.SYSTEM, "Other")], "english"
    )
    assert texts(again.messages) == ["You remember."]
    assert again.revision == 1


async def test_messages_of_a_turn_are_in_the_window_and_in_the_log(
    conversation: Conversation, log: PostgresMessageStore
) -> None:
    run = new_id("run")
    start = await conversation.begin(run, "Hello", "again")
    assert texts(start.window.messages) == ["You remember.", "Hello", "again"]
    assert [item.sequence for item in start.inputs] == [1, 2]
    done = await conversation.store.commit_step(conversation.step(run, 1, "Hi."))
    assert [item.sequence for item in done.messages] == [3]
    window = await conversation.store.get(conversation.id)
    assert texts(window.messages) == ["You remember.", "Hello", "again", "Hi."]
    assert window.message_count == 4
    assert window.revision == done.revision
    assert (await log.get(done.messages[0].id)).parts == done.messages[0].parts


async def test_inputs_are_stored_once_for_all_attempts(conversation: Conversation) -> None:
    run = new_id("run")
    await conversation.begin(run, "Hello")
    await conversation.begin(run, "Hello")
    resumed = await conversation.begin(run, "Hello", attempt=2)
    assert texts(resumed.window.messages) == ["You remember.", "Hello"]
    assert texts(resumed.inputs) == ["Hello"]
    assert resumed.committed_steps == 0


async def test_resumed_run_gets_its_committed_steps(conversation: Conversation) -> None:
    run = new_id("run")
    await conversation.begin(run, "Hello")
    await conversation.store.commit_step(conversation.step(run, 1, "One"))
    resumed = await conversation.begin(run, "Hello", attempt=2)
    assert resumed.committed_steps == 1
    assert texts(resumed.committed) == ["One"]


async def test_an_older_attempt_is_refused(conversation: Conversation) -> None:
    run = new_id("run")
    await conversation.begin(run, "Hello")
    await conversation.begin(run, attempt=2)
    for refused in (
        conversation.begin(run, "Hello"),
        conversation.store.commit_step(conversation.step(run, 1, "late")),
    ):
        with pytest.raises(AbortedError) as caught:
            await refused
        assert caught.value.reason is Reason.STALE_ATTEMPT
        assert caught.value.metadata["current_attempt"] == "2"
    window = await conversation.store.get(conversation.id)
    assert texts(window.messages) == ["You remember.", "Hello"]


async def test_a_replaced_run_cannot_write_again(conversation: Conversation) -> None:
    first, second = new_id("run"), new_id("run")
    await conversation.begin(first, "Hello")
    await conversation.begin(second, "Other")
    for refused in (
        conversation.begin(first, "Hello"),
        conversation.begin(first, attempt=9),
        conversation.store.commit_step(conversation.step(first, 1, "late")),
    ):
        with pytest.raises(AbortedError) as caught:
            await refused
        assert caught.value.reason is Reason.STALE_ATTEMPT


async def test_a_repeated_step_gets_the_first_answer(conversation: Conversation) -> None:
    run = new_id("run")
    await conversation.begin(run, "Hello")
    first = await conversation.store.commit_step(conversation.step(run, 1, "One"))
    again = await conversation.store.commit_step(conversation.step(run, 1, "Different"))
    assert texts(again.messages) == ["One"]
    assert again.revision == first.revision
    with pytest.raises(AbortedError):
        await conversation.store.commit_step(conversation.step(run, 3, "skips"))


async def test_concurrent_commits_of_one_step_store_one_of_them(conversation: Conversation) -> None:
    run = new_id("run")
    await conversation.begin(run, "Hello")
    done = await asyncio.gather(
        *(
            conversation.store.commit_step(conversation.step(run, 1, f"writer {number}"))
            for number in range(8)
        )
    )
    assert len({texts(item.messages)[0] for item in done}) == 1
    window = await conversation.store.get(conversation.id)
    assert len(window.messages) == 3


async def test_the_system_message_is_rewritten_in_place(
    conversation: Conversation, log: PostgresMessageStore
) -> None:
    run = new_id("run")
    await conversation.begin(run, "Hello")
    await conversation.store.commit_step(
        conversation.step(run, 1, "Hi", system_text="New prompt", metadata_stale=True)
    )
    window = await conversation.store.get(conversation.id)
    assert texts(window.messages)[0] == "New prompt"
    assert window.messages[0].id == conversation.system.id
    assert window.metadata_stale


async def test_evicted_messages_leave_the_window_and_stay_in_the_log(
    conversation: Conversation, log: PostgresMessageStore
) -> None:
    first, second = new_id("run"), new_id("run")
    start = await conversation.begin(first, "old question")
    await conversation.store.commit_step(conversation.step(first, 1, "old answer"))
    await conversation.begin(second, "new question")
    await conversation.store.commit_step(conversation.step(second, 1, "new answer", evict_count=2))
    window = await conversation.store.get(conversation.id)
    assert texts(window.messages) == ["You remember.", "new question", "new answer"]
    assert window.message_count == 5
    assert (await log.get(start.inputs[0].id)).sequence == 1


async def test_a_window_of_another_agent_or_project_is_missing(
    conversation: Conversation,
) -> None:
    store = conversation.store
    with pytest.raises(NotFoundError) as caught:
        await store.begin_turn(conversation.id, new_id("agent"), new_id("run"), 1, [])
    assert caught.value.reason is Reason.WINDOW_NOT_FOUND
    with context.use(as_project()), pytest.raises(NotFoundError):
        await store.get(conversation.id)


async def test_compaction_swaps_the_window_and_keeps_the_log(
    conversation: Conversation, log: PostgresMessageStore
) -> None:
    run = new_id("run")
    start = await conversation.begin(run, "Hello")
    done = await conversation.store.commit_step(conversation.step(run, 1, "Hi"))
    parts = {
        "type": "summary",
        "text": "They greeted.",
        "first_sequence": 1,
        "last_sequence": 1,
        "message_count": 1,
    }
    summary = replace(message(MessageRole.SUMMARY, ""), parts=(parts,))
    plan = Compaction(conversation.id, run, 1, done.revision, summary, (done.messages[0].id,))
    window = await conversation.store.compact(plan)
    assert [item.role for item in window.messages] == [
        MessageRole.SYSTEM,
        MessageRole.SUMMARY,
        MessageRole.ASSISTANT,
    ]
    assert await conversation.store.compact(plan) == window
    assert (await log.get(start.inputs[0].id)).sequence == 1
    with pytest.raises(AbortedError) as caught:
        await conversation.store.compact(replace(plan, summary=message(MessageRole.SUMMARY, "x")))
    assert caught.value.reason is Reason.REVISION_MISMATCH


@pytest.mark.parametrize("at_once", [1, 2, 3])
async def test_many_messages_of_an_agent_are_deleted_in_several_transactions(
    conversation: Conversation,
    store: PostgresWindowStore,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    monkeypatch.setattr(context_windows, "_DELETED_AT_ONCE", at_once)
    await conversation.begin(new_id("run"), "Hello")
    before = database.statistics.commits
    assert await store.delete_agent(conversation.agent) == 2
    assert database.statistics.commits - before == 2 // at_once + 1
    async with database.transaction(read_only=True) as connection:
        left = await connection.execute(sql("SELECT id FROM recall.messages"))
        assert left.all() == []
    with pytest.raises(NotFoundError):
        await store.get(conversation.id)


async def test_a_step_that_is_committed_meanwhile_is_deleted_with_its_agent(
    conversation: Conversation, database: Database, urls: Any
) -> None:
    store, run = conversation.store, new_id("run")
    await conversation.begin(run, "Hello")
    step = conversation.step(run, 1, "Hi")
    image = StoredImage("image-1", "image/png", b"1")
    step = replace(step, messages=(replace(step.messages[0], images=(image,)),))
    inserted = f"NEW.agent_id = '{conversation.agent}'"
    async with gate(urls.admin_url, "recall.messages", "INSERT", inserted) as connection:
        committing = asyncio.create_task(store.commit_step(step))
        await waiting_sessions(connection, 1)
        deleting = asyncio.create_task(store.delete_agent(conversation.agent))
        await waiting_sessions(connection, 2)
    await committing
    assert await deleting == 3
    assert await rows_left(database) == 0


async def test_a_window_that_is_opened_meanwhile_is_deleted_with_its_agent(
    conversation: Conversation, database: Database, urls: Any
) -> None:
    store, second = conversation.store, Conversation(conversation.store)
    second.agent = conversation.agent
    opened = f"NEW.agent_id = '{conversation.agent}'"
    async with gate(urls.admin_url, "recall.windows", "INSERT", opened) as connection:
        opening = asyncio.create_task(second.open())
        await waiting_sessions(connection, 1)
        deleting = asyncio.create_task(store.delete_agent(conversation.agent))
        await waiting_sessions(connection, 2)
    await opening
    assert await deleting == 2
    with pytest.raises(NotFoundError) as caught:
        await second.open()
    assert caught.value.reason is Reason.AGENT_NOT_FOUND
    assert await rows_left(database) == 0


async def rows_left(database: Database) -> int:
    tables = ("messages", "message_images", "images", "turns", "windows")
    counts = " + ".join(f"(SELECT count(*) FROM recall.{table})" for table in tables)
    async with database.transaction(read_only=True) as connection:
        return int((await connection.execute(sql(f"SELECT {counts}"))).scalar_one())


async def test_deleting_an_agent_keeps_the_others(
    conversation: Conversation, store: PostgresWindowStore
) -> None:
    other = Conversation(store)
    await other.open()
    await conversation.begin(new_id("run"), "Hello")
    assert await store.delete_agent(conversation.agent) == 2
    assert await store.delete_agent(conversation.agent) == 0
    with pytest.raises(NotFoundError):
        await store.get(conversation.id)
    assert len((await store.get(other.id)).messages) == 1


class RacingDatabase:
    """A database that another transaction changes before each query."""

    def __init__(self, database: Database, race: Callable[[], Awaitable[object]]) -> None:
        self._database = database
        self._race = race

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def query(self, *arguments: Any, **values: Any) -> Any:
        await self._race()
        return await self._database.query(*arguments, **values)


async def test_messages_deleted_at_the_start_of_a_turn_are_not_in_its_window(
    conversation: Conversation, database: Database
) -> None:
    run, store = new_id("run"), conversation.store
    begun = await conversation.begin(run, "Hello")
    await store.commit_step(conversation.step(run, 1, "Hi"))

    async def delete() -> None:
        await store.evict(conversation.id, conversation.agent, 2)
        await database.execute(
            sql("DELETE FROM recall.messages WHERE project_id = :project AND id = :id"),
            {"project": context.current_project(), "id": begun.inputs[0].id},
        )

    racing: Any = RacingDatabase(database, delete)
    conversation.store = PostgresWindowStore(racing)
    start = await conversation.begin(new_id("run"), "Still there?")

    texts = [part["text"] for message in start.window.messages for part in message.parts]
    assert texts == ["You remember.", "Still there?"]
    assert [message.parts[0]["text"] for message in start.inputs] == ["Still there?"]
    assert start.window == await store.get(conversation.id)


async def test_agent_that_is_deleted_as_its_turn_begins_has_no_window(
    conversation: Conversation, database: Database
) -> None:
    store = conversation.store
    racing: Any = RacingDatabase(database, lambda: store.delete_agent(conversation.agent))
    conversation.store = PostgresWindowStore(racing)
    with pytest.raises(NotFoundError):
        await conversation.begin(new_id("run"), "Hello")


async def test_a_turn_costs_a_constant_number_of_statements(
    conversation: Conversation, database: Database
) -> None:
    async def cost() -> int:
        before = database.statistics.round_trips
        run = new_id("run")
        await conversation.begin(run, "Hello")
        await conversation.store.commit_step(conversation.step(run, 1, "Hi"))
        return database.statistics.round_trips - before

    first = await cost()
    for _ in range(20):
        await cost()
    assert await cost() == first == 3


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    moves=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["begin", "commit"]), st.integers(1, 3)),
        max_size=25,
    )
)
async def test_the_log_has_no_gaps_for_any_order_of_writers(
    store: PostgresWindowStore, log: PostgresMessageStore, moves: list[tuple[int, str, int]]
) -> None:
    """Runs 1 to 3 start and commit in any order and attempt; the window must equal the log."""
    conversation = Conversation(store)
    await conversation.open()
    runs = {number: new_id("run") for number in (1, 2, 3)}
    accepted = 1
    for number, move, attempt in moves:
        try:
            if move == "begin":
                start = await conversation.begin(runs[number], "in", attempt=attempt)
                accepted = max(accepted, start.window.message_count)
            else:
                start = await conversation.begin(runs[number], "in", attempt=attempt)
                done = await store.commit_step(
                    conversation.step(runs[number], start.committed_steps + 1, "out", attempt)
                )
                accepted = done.message_count
        except AbortedError:
            continue
    window = await store.get(conversation.id)
    assert window.message_count == accepted == len(window.messages)
    assert [item.sequence for item in window.messages] == list(range(accepted))


async def test_evicted_messages_leave_the_window_once_and_stay_in_the_log(
    conversation: Conversation, log: PostgresMessageStore
) -> None:
    await conversation.begin("run-1", "first")
    await conversation.store.commit_step(conversation.step("run-1", 1, "reply"))
    await conversation.begin("run-2", "second")
    before = await conversation.store.get(conversation.id)

    assert await conversation.store.evict(conversation.id, conversation.agent, 2) == 2
    window = await conversation.store.get(conversation.id)
    assert texts(window.messages) == ["You remember.", "second"]
    assert window.revision == before.revision + 1
    assert window.message_count == before.message_count
    assert window.metadata_stale
    assert await conversation.store.evict(conversation.id, conversation.agent, 2) == 0
    assert await conversation.store.get(conversation.id) == window
    # The running turn continues in the remaining window.
    await conversation.store.commit_step(conversation.step("run-2", 1, "later"))
    window = await conversation.store.get(conversation.id)
    assert texts(window.messages) == ["You remember.", "second", "later"]
    assert (await log.get(before.messages[1].id)).parts[0]["text"] == "first"


async def test_eviction_requires_the_agent_and_the_project_of_the_window(
    conversation: Conversation,
) -> None:
    await conversation.begin("run-1", "first")
    for conversation_id, agent in (
        (conversation.id, new_id("agent")),
        (new_id("conversation"), conversation.agent),
    ):
        with pytest.raises(NotFoundError) as raised:
            await conversation.store.evict(conversation_id, agent, 9)
        assert raised.value.reason is Reason.WINDOW_NOT_FOUND
    with context.use(as_project()), pytest.raises(NotFoundError):
        await conversation.store.evict(conversation.id, conversation.agent, 9)
    window = await conversation.store.get(conversation.id)
    assert texts(window.messages) == ["You remember.", "first"]


async def test_concurrent_evictions_and_steps_lose_no_message(conversation: Conversation) -> None:
    await conversation.begin("run-1", "first")
    for number in range(1, 9):
        step = conversation.step("run-1", number, f"step {number}")
        await asyncio.gather(
            conversation.store.commit_step(step),
            conversation.store.evict(conversation.id, conversation.agent, number - 1),
        )
    window = await conversation.store.get(conversation.id)
    assert texts(window.messages) == ["You remember.", "step 7", "step 8"]
