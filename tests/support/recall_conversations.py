"""Conversations that tests write to the stores of recall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from strata.recall.domain.messages import Compaction, Cursor, Message, MessageFilter, Step, Window
from strata.recall.store import (
    PostgresForkStore,
    PostgresMessageStore,
    PostgresPinStore,
    PostgresSearchStore,
    PostgresWindowStore,
)
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

START = datetime(2026, 1, 1, tzinfo=UTC)


class Writer:
    """Stores messages a day apart in one conversation."""

    def __init__(self, database: Database, agent: str) -> None:
        self.windows = PostgresWindowStore(database)
        self.agent = agent
        self.conversation = new_id("conversation")
        self.day = 0

    async def open(self) -> None:
        system = Message(
            id=new_id("message"),
            role=MessageRole.SYSTEM,
            parts=({"type": "text", "text": "memory about dogs"},),
            create_time=START,
        )
        await self.windows.open(self.conversation, self.agent, [system], "english")

    async def say(
        self,
        text: str,
        role: MessageRole = MessageRole.USER,
        run: str = "",
        *parts: Any,
        at: datetime | None = None,
        name: str = "",
    ) -> Message:
        self.day += 1
        run = run or new_id("run")
        message = Message(
            id=new_id("message"),
            role=role,
            parts=({"type": "text", "text": text}, *parts) if text else tuple(parts),
            create_time=at or START + timedelta(days=self.day),
            name=name,
            run_id=run,
        )
        start = await self.windows.begin_turn(self.conversation, self.agent, run, 1, [message])
        return start.inputs[0]


NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def text(role: MessageRole, words: str, **fields: Any) -> Message:
    part = {"type": "text", "text": words}
    return Message(id=new_id("message"), role=role, parts=(part,), create_time=NOW, **fields)


def call_of(run: str, *ids: str) -> Message:
    calls = tuple(
        {"type": "tool_call", "tool_call_id": id_, "name": "f", "arguments": "{}"} for id_ in ids
    )
    return replace(text(MessageRole.ASSISTANT, ""), parts=calls, run_id=run, step=1)


def return_of(run: str, call_id: str) -> Message:
    part = {
        "type": "tool_return",
        "tool_call_id": call_id,
        "name": "f",
        "status": "OK",
        "content": "r",
        "stdout": [],
        "stderr": [],
        "provenance": "TOOL",
    }
    return replace(text(MessageRole.TOOL, ""), parts=(part,), run_id=run, step=1)


class Talk:
    """A conversation of an agent, with its stores."""

    def __init__(self, database: Database, agent: str = "", conversation: str = "") -> None:
        self.database = database
        self.agent = agent or new_id("agent")
        self.id = conversation or new_id("conversation")
        self.windows = PostgresWindowStore(database)
        self.pins = PostgresPinStore(database)
        self.log = PostgresMessageStore(database)
        self.forks = PostgresForkStore(database)
        self.search = PostgresSearchStore(database)
        self.minutes = 0

    async def open(self) -> Talk:
        await self.windows.open(
            self.id, self.agent, [text(MessageRole.SYSTEM, "Remember.")], "english"
        )
        return self

    async def turn(self, words: str, *, calls: int = 0) -> list[Message]:
        """Stores a turn, with `calls` tool calls and their returns; returns its messages."""
        run = new_id("run")
        self.minutes += 1
        at = NOW + timedelta(minutes=self.minutes)
        asked = replace(text(MessageRole.USER, words, run_id=run), create_time=at)
        start = await self.windows.begin_turn(self.id, self.agent, run, 1, [asked])
        replies = [text(MessageRole.ASSISTANT, f"on {words}", run_id=run, step=1)]
        if calls:
            names = [new_id("call") for _ in range(calls)]
            replies = [call_of(run, *names), *(return_of(run, name) for name in names)]
        replies = [replace(message, create_time=at) for message in replies]
        step = Step(self.id, self.agent, run, 1, 1, tuple(replies))
        return [*start.inputs, *(await self.windows.commit_step(step)).messages]

    async def compact(self, *kept: Message) -> Window:
        """Compacts the window to these messages."""
        window = await self.windows.get(self.id)
        gone = [m for m in window.messages[1:] if m.id not in {k.id for k in kept}]
        earlier = [m.parts[0] for m in gone if m.role is MessageRole.SUMMARY]
        firsts = [(m.sequence, m.id) for m in gone if m.role is not MessageRole.SUMMARY]
        firsts += [(p["first_sequence"], p["first_message_id"]) for p in earlier]
        lasts = [(m.sequence, m.id) for m in gone if m.role is not MessageRole.SUMMARY]
        lasts += [(p["last_sequence"], p["last_message_id"]) for p in earlier]
        part = {
            "type": "summary",
            "text": f"summary of {len(gone)}",
            "first_sequence": min(firsts)[0],
            "last_sequence": max(lasts)[0],
            "message_count": len(gone),
            "first_message_id": min(firsts)[1],
            "last_message_id": max(lasts)[1],
        }
        self.minutes += 1
        at = NOW + timedelta(minutes=self.minutes)
        summary = replace(text(MessageRole.SUMMARY, ""), parts=(part,), create_time=at)
        ids = tuple(message.id for message in kept)
        return await self.windows.compact(Compaction(self.id, "", 0, window.revision, summary, ids))

    async def window(self) -> list[Message]:
        return list((await self.windows.get(self.id)).messages)

    async def fork(self, until: str = "") -> Talk:
        made = Talk(self.database, self.agent)
        made.minutes = self.minutes + 100
        await self.forks.fork(self.id, made.id, until)
        return made

    async def listed(self, **wanted: Any) -> list[Message]:
        """Returns the whole log; reads it in small pages in both directions."""
        messages: list[Message] = []
        filter_ = MessageFilter(conversation_id=self.id, **wanted)
        for newest_first in (False, True):
            cursor: Cursor | None = None
            pages: list[Message] = []
            while True:
                page = await self.log.page(replace(filter_, newest_first=newest_first), 3, cursor)
                pages += page.messages
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert not newest_first or pages[::-1] == messages
            messages = messages or pages
        return messages


def with_pinned_steps(messages: Sequence[Message]) -> list[Message]:
    """Returns the pinned messages with the other messages of their steps, as in the agent loop.

    Providers refuse a call without its return.
    """
    steps = {(m.run_id, m.step) for m in messages if m.pinned}
    return [m for m in messages if m.pinned or (m.step > 0 and (m.run_id, m.step) in steps)]


def ids(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]
