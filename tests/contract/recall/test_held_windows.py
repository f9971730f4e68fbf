"""Callers that hold the earlier messages of a window read only the new ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from recall_conversations import Talk, text, with_pinned_steps
from strata.recall.domain.messages import HeldWindow, Message, Step, TurnStart
from strata.shared.db import Database, sql
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

_ROWS_READ = sql(
    "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables"
    " WHERE schemaname = 'recall' AND relname = 'messages'"
)
_WAITING = sql("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")


class Holder:
    """Starts turns in a conversation, and holds the window of the last one."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._messages: tuple[Message, ...] = ()
        self._held: HeldWindow | None = None

    async def begin(self, *, run: str = "", attempt: int = 1, clear: bool = False) -> TurnStart:
        """Starts a turn; asserts that the held messages then equal the window."""
        run = run or new_id("run")
        asked = text(MessageRole.USER, "asked", run_id=run)
        talk = self._talk
        start = await talk.windows.begin_turn(
            talk.id, talk.agent, run, attempt, [asked], clear=clear, held=self._held
        )
        system, *added = start.window.messages
        kept = self._messages[1 : 1 + start.unchanged_count]
        self._messages = (system, *kept, *added)
        assert replace(start.window, messages=self._messages) == await talk.windows.get(talk.id)
        last = self._messages[-1].id
        self._held = HeldWindow(start.window.revision, len(self._messages), last)
        return start


@pytest.fixture
async def talk(database: Database) -> Talk:
    return await Talk(database).open()


async def commit(
    talk: Talk, run: str, *, system_text: str | None = None, evict_count: int = 0
) -> None:
    await talk.windows.begin_turn(talk.id, talk.agent, run, 1, [])
    reply = text(MessageRole.ASSISTANT, "reply", run_id=run, step=1)
    step = Step(
        talk.id, talk.agent, run, 1, 1, (reply,), system_text=system_text, evict_count=evict_count
    )
    await talk.windows.commit_step(step)


async def test_only_new_messages_and_the_system_message_are_read(talk: Talk) -> None:
    holder = Holder(talk)
    assert (await holder.begin()).unchanged_count == 0
    await talk.turn("by another replica", calls=2)
    await commit(talk, new_id("run"), system_text="A new text.")
    start = await holder.begin()
    assert start.unchanged_count == 1
    assert [message.role.value for message in start.window.messages] == [
        *("system", "user", "assistant", "tool", "tool"),
        *("assistant", "user"),
    ]


async def test_a_turn_of_a_caller_that_holds_all_messages_begins_with_one_statement(
    talk: Talk,
) -> None:
    holder, run = Holder(talk), new_id("run")
    await holder.begin(run=run)
    reply = text(MessageRole.ASSISTANT, "reply", run_id=run, step=1)
    await talk.windows.commit_step(
        Step(talk.id, talk.agent, run, 1, 1, (reply,), system_text="A new text.")
    )
    await holder.begin()

    window = await talk.windows.get(talk.id)
    held = HeldWindow(window.revision, len(window.messages), window.messages[-1].id)
    before = talk.database.statistics.round_trips
    asked = text(MessageRole.USER, "asked", run_id=new_id("run"))
    start = await talk.windows.begin_turn(talk.id, talk.agent, asked.run_id, 1, [asked], held=held)
    assert talk.database.statistics.round_trips - before == 1
    assert start.unchanged_count == len(window.messages) - 1
    assert [message.id for message in start.window.messages] == [window.messages[0].id, asked.id]
    assert start.window.messages[0] == window.messages[0]
    assert start.window.messages[0].parts == ({"type": "text", "text": "A new text."},)


async def test_a_turn_reads_no_other_messages_of_its_project_before_statistics_exist(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL keeps the plans that it makes while the table is new."""
    rows: list[int] = []

    async def counted(statement: Any, values: Any, **_: Any) -> Any:
        async with talk.database.transaction(generic_plan=True) as connection:
            before = (await connection.execute(_ROWS_READ)).scalar_one()
            result = await connection.execute(statement, values)
            rows.append((await connection.execute(_ROWS_READ)).scalar_one() - before)
            return result

    monkeypatch.setattr(talk.database, "execute", counted)
    for _ in range(15):
        holder, run = Holder(talk), new_id("run")
        await holder.begin()
        await holder.begin(run=run)
        reply = text(MessageRole.ASSISTANT, "reply", run_id=run, step=1)
        rows.clear()
        await talk.windows.commit_step(
            Step(talk.id, talk.agent, run, 1, 1, (reply,), system_text="A new text.")
        )
        window = await talk.windows.get(talk.id)
        held = HeldWindow(window.revision, len(window.messages), window.messages[-1].id)
        await talk.windows.begin_turn(talk.id, talk.agent, new_id("run"), 1, [], held=held)
    assert rows == [1, 1], "the system message, written and read"


@pytest.mark.parametrize("asks", [True, False])
async def test_a_turn_that_waits_for_a_commit_gets_the_text_of_that_commit(
    talk: Talk, *, asks: bool
) -> None:
    """The statement that begins the turn sees the window after the commit, but no other row."""
    await talk.turn("first")
    window, run = await talk.windows.get(talk.id), new_id("run")
    system = window.messages[0]
    held = HeldWindow(window.revision, len(window.messages), window.messages[-1].id)
    inputs = [text(MessageRole.USER, "asked", run_id=run)] if asks else []
    async with talk.database.transaction() as connection:
        await connection.execute(
            sql("UPDATE recall.windows SET revision = revision + 1 WHERE conversation_id = :id"),
            {"id": talk.id},
        )
        await connection.execute(
            sql("UPDATE recall.messages SET parts = CAST(:parts AS jsonb) WHERE id = :id"),
            {"id": system.id, "parts": '[{"type": "text", "text": "A new text."}]'},
        )
        begin = asyncio.create_task(
            talk.windows.begin_turn(talk.id, talk.agent, run, 1, inputs, held=held)
        )
        async with talk.database.transaction(read_only=True) as other:
            while not (await other.execute(_WAITING)).scalar_one():
                await asyncio.sleep(0.01)
    start = await begin
    assert start.window.messages[0].parts == ({"type": "text", "text": "A new text."},)
    assert start.unchanged_count == len(window.messages) - 1


async def test_a_repeated_attempt_reads_the_messages_that_its_steps_added(talk: Talk) -> None:
    holder, run = Holder(talk), new_id("run")
    await holder.begin(run=run)
    reply = text(MessageRole.ASSISTANT, "reply", run_id=run, step=1)
    await talk.windows.commit_step(Step(talk.id, talk.agent, run, 1, 1, (reply,)))
    start = await holder.begin(run=run, attempt=2)
    assert start.unchanged_count == 1
    assert len(start.window.messages) == 2


@pytest.mark.parametrize(
    "held",
    [
        HeldWindow(revision=99, message_count=2, last_message_id="{last}"),
        HeldWindow(revision=0, message_count=2, last_message_id="message-of-another"),
        HeldWindow(revision=2, message_count=3, last_message_id="{last}"),
        HeldWindow(revision=2, message_count=0, last_message_id="{last}"),
        HeldWindow(revision=2, message_count=-1, last_message_id="{last}"),
        HeldWindow(revision=2, message_count=2**31 - 1, last_message_id=""),
    ],
)
async def test_a_caller_that_holds_another_window_reads_the_whole_window(
    talk: Talk, held: HeldWindow
) -> None:
    await Holder(talk).begin()
    whole = await talk.windows.get(talk.id)
    last = held.last_message_id.format(last=whole.messages[-1].id)
    start = await talk.windows.begin_turn(
        talk.id, talk.agent, new_id("run"), 1, [], held=replace(held, last_message_id=last)
    )
    assert start.unchanged_count == 0
    assert start.window.messages == whole.messages


async def rewrite_revision(talk: Talk) -> int:
    async with talk.database.transaction(read_only=True) as connection:
        row = await connection.execute(
            sql("SELECT rewrite_revision FROM recall.windows WHERE conversation_id = :id"),
            {"id": talk.id},
        )
        return int(row.scalar_one())


@pytest.mark.parametrize("change", ["clear", "leave", "evict", "compact", "pin", "unpin"])
async def test_every_change_except_an_addition_counts_as_a_rewrite(talk: Talk, change: str) -> None:
    asked, *_ = await talk.turn("first")
    await commit(talk, new_id("run"), system_text="A new text.")
    assert await rewrite_revision(talk) == 0
    match change:
        case "clear":
            await Holder(talk).begin(clear=True)
        case "leave":
            await commit(talk, new_id("run"), evict_count=1)
        case "evict":
            await talk.windows.evict(talk.id, talk.agent, asked.sequence)
        case "compact":
            await talk.compact()
        case "pin" | "unpin":
            await talk.pins.set(asked.id, pinned=True)
            if change == "unpin":
                await talk.pins.set(asked.id, pinned=False)
    revision = (await talk.windows.get(talk.id)).revision
    assert await rewrite_revision(talk) == revision
    await talk.turn("second")
    assert await rewrite_revision(talk) == revision


async def test_replacing_one_message_by_a_summary_counts_as_a_rewrite(talk: Talk) -> None:
    await talk.turn("first")
    holder = Holder(talk)
    await holder.begin()
    await talk.compact(*(await talk.window())[2:])
    assert (await holder.begin()).unchanged_count == 0


MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("turn", "calls", "pin", "unpin", "compact", "clear", "leave", "evict", "system"),
                *("hold", "hold", "hold"),
            ]
        ),
        st.integers(0, 60),
    ),
    min_size=4,
    max_size=16,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=MOVES)
@example(moves=[("turn", 0), ("hold", 0), ("pin", 0), ("hold", 0), ("unpin", 0), ("hold", 0)])
@example(moves=[("turn", 0), ("hold", 0), ("leave", 0), ("hold", 0), ("evict", 3), ("hold", 0)])
@example(moves=[("hold", 0), ("clear", 0), ("hold", 0), ("compact", 0), ("hold", 0)])
async def test_a_held_window_equals_the_stored_one_after_random_operations(
    database: Database, moves: list[tuple[str, int]]
) -> None:
    talk = await Talk(database).open()
    # Two replicas that hold different revisions.
    holders = [Holder(talk), Holder(talk)]
    for move, number in moves:
        body = [
            message
            for message in await talk.window()
            if message.role not in {MessageRole.SYSTEM, MessageRole.SUMMARY}
        ]
        match move:
            case "turn" | "calls":
                await talk.turn(f"words {number}", calls=number % 3 if move == "calls" else 0)
            case "pin" | "unpin" if body:
                await talk.pins.set(body[number % len(body)].id, pinned=move == "pin")
            case "compact" if body:
                kept = with_pinned_steps(body)
                if kept != body:
                    await talk.compact(*kept)
            case "clear":
                await holders[number % 2].begin(clear=True)
            case "leave" if body and not any(m.pinned or m.step for m in body[:1]):
                await commit(talk, new_id("run"), evict_count=1)
            case "evict" if body:
                await talk.windows.evict(talk.id, talk.agent, body[number % len(body)].sequence)
            case "system":
                await commit(talk, new_id("run"), system_text=f"Text {number}.")
            case "hold":
                await holders[number % 2].begin()
    for holder in holders:
        await holder.begin()
