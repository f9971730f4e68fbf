"""The contract of compaction and pins, on PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callers import as_project
from strata.protocol.errors import AbortedError, InvalidArgumentError, NotFoundError, Reason
from strata.recall.domain.messages import Compaction, Message, MessageFilter, Step, Window
from strata.recall.domain.search import SearchQuery
from strata.recall.store import (
    PostgresMessageStore,
    PostgresPinStore,
    PostgresSearchStore,
    PostgresWindowStore,
)
from strata.shared import context
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
AGENT = new_id("agent")


def text(role: MessageRole, words: str, **fields: Any) -> Message:
    part = {"type": "text", "text": words}
    return Message(id=new_id("message"), role=role, parts=(part,), create_time=NOW, **fields)


def called(run: str) -> tuple[Message, Message]:
    call = {"type": "tool_call", "tool_call_id": new_id("call"), "name": "f", "arguments": "{}"}
    tool_return = {
        "type": "tool_return",
        "tool_call_id": call["tool_call_id"],
        "name": "f",
        "status": "OK",
        "content": "r",
        "stdout": [],
        "stderr": [],
        "provenance": "TOOL",
    }
    asked = replace(text(MessageRole.ASSISTANT, ""), parts=(call,), run_id=run, step=1)
    return asked, replace(text(MessageRole.TOOL, ""), parts=(tool_return,), run_id=run, step=1)


class Talk:
    """A conversation with its stores."""

    def __init__(self, database: Database) -> None:
        self.windows = PostgresWindowStore(database)
        self.pins = PostgresPinStore(database)
        self.log = PostgresMessageStore(database)
        self.search = PostgresSearchStore(database)
        self.id = new_id("conversation")
        self.run = ""

    async def open(self) -> None:
        await self.windows.open(
            self.id, AGENT, [text(MessageRole.SYSTEM, "You remember.")], "english"
        )

    async def turn(self, words: str, *, calls: bool = False) -> list[Message]:
        """Stores a turn; returns its messages."""
        self.run = new_id("run")
        asked = text(MessageRole.USER, words, run_id=self.run)
        start = await self.windows.begin_turn(self.id, AGENT, self.run, 1, [asked])
        messages = (
            called(self.run) if calls else [text(MessageRole.ASSISTANT, "ok", run_id=self.run)]
        )
        replies = tuple(replace(message, step=1) for message in messages)
        done = await self.windows.commit_step(Step(self.id, AGENT, self.run, 1, 1, replies))
        return [*start.inputs, *done.messages]

    async def window(self) -> Window:
        return await self.windows.get(self.id)

    async def plan(self, *kept: Message, words: str = "They talked.") -> Compaction:
        """Returns the plan of a compaction of the current window."""
        window = await self.window()
        part = {
            "type": "summary",
            "text": words,
            "first_sequence": 1,
            "last_sequence": 2,
            "message_count": 2,
            "first_message_id": window.messages[1].id,
            "last_message_id": window.messages[2].id,
        }
        summary = replace(text(MessageRole.SUMMARY, ""), parts=(part,))
        ids = tuple(message.id for message in kept)
        return Compaction(self.id, "", 0, window.revision, summary, ids)


@pytest.fixture
async def talk(database: Database) -> Talk:
    opened = Talk(database)
    await opened.open()
    return opened


def ids(messages: Any) -> list[str]:
    return [message.id for message in messages]


async def test_summary_and_window_are_one_statement(talk: Talk, database: Database) -> None:
    await talk.turn("old")
    newest = await talk.turn("new")
    planned = await talk.plan(*newest)
    before = database.statistics.statements, database.statistics.commits
    window = await talk.windows.compact(planned)
    statements = database.statistics.statements - before[0]

    assert [m.role for m in window.messages] == [
        MessageRole.SYSTEM,
        MessageRole.SUMMARY,
        MessageRole.USER,
        MessageRole.ASSISTANT,
    ]
    # One statement writes; the other two read the window that is returned.
    assert statements == 3
    assert database.statistics.commits - before[1] == 1
    assert window.messages[1].sequence == 5
    assert window.message_count == 6
    assert window.metadata_stale


async def test_a_summary_that_cannot_be_stored_leaves_the_window_unchanged(talk: Talk) -> None:
    await talk.turn("old")
    newest = await talk.turn("new")
    planned = await talk.plan(*newest)
    taken = replace(planned, summary=replace(planned.summary, id=newest[0].id))
    before = await talk.window()
    with pytest.raises(asyncpg.PostgresError):
        await talk.windows.compact(taken)
    assert await talk.window() == before


async def test_resumed_run_gets_its_inputs_without_its_summary(talk: Talk) -> None:
    await talk.turn("old")
    run = new_id("run")
    asked = text(MessageRole.USER, "new", run_id=run)
    start = await talk.windows.begin_turn(talk.id, AGENT, run, 1, [asked])
    planned = await talk.plan(*start.inputs)
    made = replace(planned, run_id=run, attempt=1, summary=replace(planned.summary, run_id=run))
    compacted = await talk.windows.compact(made)

    again = await talk.windows.begin_turn(talk.id, AGENT, run, 2, [asked])
    assert ids(again.inputs) == [asked.id]
    assert again.committed == ()
    assert ids(again.window.messages) == ids(compacted.messages)
    with pytest.raises(AbortedError) as raised:
        await talk.windows.compact(
            replace(made, summary=replace(made.summary, id=new_id("message")))
        )
    assert raised.value.reason is Reason.STALE_ATTEMPT


async def test_kept_messages_must_be_in_the_window_and_include_the_pinned_ones(talk: Talk) -> None:
    first = await talk.turn("old")
    newest = await talk.turn("new")
    system = (await talk.window()).messages[0]
    other = Talk(talk.windows._database)
    await other.open()
    foreign = await other.turn("elsewhere")
    await talk.pins.set(first[0].id, pinned=True)
    for kept in ([*newest], [*foreign], [system, first[0]]):
        with pytest.raises(InvalidArgumentError) as raised:
            await talk.windows.compact(await talk.plan(*kept))
        assert raised.value.violations[0].field == "kept_message_ids"
    done = await talk.windows.compact(await talk.plan(first[0], *newest))
    assert ids(done.messages)[2:] == ids([first[0], *newest])


async def test_a_pin_set_after_planning_makes_the_compaction_fail(talk: Talk) -> None:
    first = await talk.turn("old")
    newest = await talk.turn("new")
    planned = await talk.plan(*newest)
    await talk.pins.set(first[0].id, pinned=True)
    with pytest.raises(AbortedError) as raised:
        await talk.windows.compact(planned)
    assert raised.value.reason is Reason.REVISION_MISMATCH
    assert first[0].id in ids((await talk.window()).messages)


async def test_a_pin_is_kept_with_the_message_and_repeating_it_changes_nothing(talk: Talk) -> None:
    first, *_ = await talk.turn("remember this")
    pinned = await talk.pins.set(first.id, pinned=True)
    after = await talk.window()
    assert pinned == replace(first, pinned=True)
    assert (await talk.log.get(first.id)).pinned
    assert [m.pinned for m in after.messages] == [False, True, False]

    await talk.pins.set(first.id, pinned=True)
    assert await talk.window() == after
    await talk.pins.set(first.id, pinned=False)
    gone = await talk.window()
    assert ids(gone.messages) == ids(after.messages)
    assert not any(m.pinned for m in gone.messages)


async def test_a_pinned_message_is_kept_with_its_step_after_the_summary(
    talk: Talk,
) -> None:
    asked, call, reply = await talk.turn("use the tool", calls=True)
    later = await talk.turn("later")
    newest = await talk.turn("new")
    await talk.windows.compact(await talk.plan(*newest))
    before = await talk.window()

    await talk.pins.set(reply.id, pinned=True)
    window = await talk.window()
    roles = [
        MessageRole.SYSTEM,
        MessageRole.SUMMARY,
        MessageRole.ASSISTANT,
        MessageRole.TOOL,
        MessageRole.USER,
        MessageRole.ASSISTANT,
    ]
    assert [m.role for m in window.messages] == roles
    assert ids(window.messages)[2:4] == [call.id, reply.id]
    assert (window.revision, window.metadata_stale) == (before.revision + 1, True)
    await talk.pins.set(asked.id, pinned=True)
    await talk.pins.set(later[0].id, pinned=True)
    shown = [asked.id, call.id, reply.id, later[0].id, *ids(newest)]
    assert ids((await talk.window()).messages)[2:] == shown


async def test_system_messages_summaries_and_unknown_messages_cannot_be_pinned(
    talk: Talk, project: str
) -> None:
    await talk.turn("old")
    newest = await talk.turn("new")
    window = await talk.windows.compact(await talk.plan(*newest))
    for message in window.messages[:2]:
        with pytest.raises(InvalidArgumentError):
            await talk.pins.set(message.id, pinned=True)
    missing = new_id("message")
    with pytest.raises(NotFoundError) as raised:
        await talk.pins.set(missing, pinned=True)
    assert raised.value.reason is Reason.MESSAGE_NOT_FOUND
    stranger = as_project()
    with context.use(stranger), pytest.raises(NotFoundError):
        await talk.pins.set(newest[0].id, pinned=True)


async def test_a_summary_is_expanded_to_the_messages_that_it_replaced(talk: Talk) -> None:
    stored = [message for n in range(4) for message in await talk.turn(f"turn {n}")]
    newest = await talk.turn("new")
    window = await talk.windows.compact(await talk.plan(*newest))
    part = window.messages[1].parts[0]
    assert (part["first_message_id"], part["last_message_id"]) == (stored[0].id, stored[1].id)

    wanted = MessageFilter(conversation_id=talk.id, from_id=stored[0].id, to_id=stored[1].id)
    assert ids((await talk.log.page(wanted, 50, None)).messages) == ids(stored[:2])
    page = await talk.log.page(replace(wanted, to_id=stored[5].id, newest_first=True), 4, None)
    assert ids(page.messages) == ids(stored[5:1:-1])
    rest = await talk.log.page(
        replace(wanted, to_id=stored[5].id, newest_first=True), 4, page.next_cursor
    )
    assert ids(rest.messages) == ids(stored[1::-1])
    assert ids((await talk.log.page(replace(wanted, to_id=""), 50, None)).messages)[-1] == (
        window.messages[1].id
    )
    other = Talk(talk.windows._database)
    await other.open()
    foreign = await other.turn("elsewhere")
    with pytest.raises(NotFoundError) as raised:
        await talk.log.page(replace(wanted, to_id=foreign[0].id), 50, None)
    assert raised.value.metadata["id"] == foreign[0].id


async def test_evicted_messages_and_the_summary_are_found_by_search(talk: Talk) -> None:
    old = await talk.turn("the cat is called Mimi")
    newest = await talk.turn("new")
    window = await talk.windows.compact(await talk.plan(*newest, words="A pet named Mimi."))
    query = SearchQuery(AGENT, "Mimi", 5, conversation_id=talk.id)
    matches = await talk.search.by_words(query, [])
    assert {message.id for message, _ in matches} == {old[0].id, window.messages[1].id}


async def test_concurrent_compactions_and_pins_leave_a_consistent_window(talk: Talk) -> None:
    stored = [message for n in range(3) for message in await talk.turn(f"turn {n}")]
    plans = [await talk.plan(*stored[2:], words=f"plan {n}") for n in range(4)]
    work = [talk.windows.compact(plan) for plan in plans]
    done = await asyncio.gather(
        *work, *(talk.pins.set(m.id, pinned=True) for m in stored[:2]), return_exceptions=True
    )
    assert sum(isinstance(outcome, Window) for outcome in done) <= 1
    assert all(isinstance(outcome, Window | Message | AbortedError) for outcome in done), done
    window = await talk.window()
    assert set(ids(stored[:2])) <= set(ids(window.messages)), (
        "both pinned messages are in the window"
    )
    body = [m for m in window.messages if m.role not in {MessageRole.SYSTEM, MessageRole.SUMMARY}]
    assert ids(body) == ids(sorted(body, key=lambda m: m.sequence))


MOVES = st.lists(
    st.tuples(st.sampled_from(["turn", "calls", "pin", "unpin", "compact"]), st.integers(0, 40)),
    max_size=14,
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=MOVES)
async def test_after_random_operations_no_window_refers_to_a_missing_message(
    database: Database, moves: list[tuple[str, int]]
) -> None:
    talk = Talk(database)
    await talk.open()
    stored: list[Message] = await talk.turn("first")
    pinned: set[str] = set()
    for move, number in moves:
        chosen = stored[number % len(stored)]
        if move in {"turn", "calls"}:
            stored += await talk.turn(f"turn {number}", calls=move == "calls")
        elif move in {"pin", "unpin"}:
            await talk.pins.set(chosen.id, pinned=move == "pin")
            (pinned.add if move == "pin" else pinned.discard)(chosen.id)
        else:
            window = await talk.window()
            body = [m for m in window.messages[1:] if m.role is not MessageRole.SUMMARY]
            if len(window.messages) > 2:
                kept = [m for m in body if _stays(m, body, pinned, number)]
                await talk.windows.compact(await talk.plan(*kept))
        window = await talk.window()
        body = [
            m for m in window.messages if m.role not in {MessageRole.SYSTEM, MessageRole.SUMMARY}
        ]
        assert pinned <= set(ids(body))
        assert ids(body) == ids(sorted(body, key=lambda m: m.sequence))
        calls = [i for m in body for i in m.tool_call_ids()]
        assert calls == [i for m in body for i in m.tool_return_ids()]
    log = await talk.log.page(MessageFilter(conversation_id=talk.id), 500, None)
    assert set(ids(stored)) <= set(ids(log.messages))
    assert [m.sequence for m in log.messages] == list(range(len(log.messages)))


def _stays(message: Message, body: list[Message], pinned: set[str], newest: int) -> bool:
    step = [m for m in body if (m.run_id, m.step) == (message.run_id, message.step)]
    if any(m.id in pinned for m in step):
        return True
    return body.index(step[0]) >= len(body) - 1 - newest % 4
