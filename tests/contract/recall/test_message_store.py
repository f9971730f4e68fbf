"""The contract of `MessageStore`, on PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from recall_conversations import Writer
from strata.recall.domain.messages import Message, MessageFilter
from strata.recall.store import PostgresMessageStore, messages, rows
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

AGENT = new_id("agent")


@pytest.fixture
def log(database: Database) -> PostgresMessageStore:
    return PostgresMessageStore(database)


@pytest.fixture
async def writer(database: Database) -> Writer:
    writer = Writer(database, AGENT)
    await writer.open()
    return writer


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("by_agent", [False, True])
async def test_pages_contain_every_message_exactly_once(
    log: PostgresMessageStore, writer: Writer, newest_first: bool, by_agent: bool
) -> None:
    stored_ids = [(await writer.say(f"message {number}")).id for number in range(7)]
    wanted = MessageFilter(
        agent_id=AGENT if by_agent else "",
        conversation_id="" if by_agent else writer.conversation,
        roles=(MessageRole.USER,),
        newest_first=newest_first,
    )
    seen: list[str] = []
    cursor = None
    while True:
        page = await log.page(wanted, 3, cursor)
        seen += [item.id for item in page.messages]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == (stored_ids[::-1] if newest_first else stored_ids)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("by_agent", [False, True])
async def test_no_more_rows_are_read_than_fill_a_page(
    log: PostgresMessageStore,
    writer: Writer,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    newest_first: bool,
    by_agent: bool,
) -> None:
    stored_ids = [(await writer.say("x" * 2**20)).id for _ in range(8)]
    wanted = MessageFilter(
        agent_id=AGENT if by_agent else "",
        conversation_id="" if by_agent else writer.conversation,
        roles=(MessageRole.USER,),
        newest_first=newest_first,
    )
    read: list[Any] = []

    def to_message(row: Any) -> Message:
        read.append(row)
        return rows.to_message(row)

    monkeypatch.setattr(messages, "to_message", to_message)
    seen: list[str] = []
    cursor = None
    while True:
        read.clear()
        before = database.statistics.statements
        page = await log.page(wanted, 500, cursor)
        assert database.statistics.statements - before == 1
        # Two fill the page; the third shows that they do.
        assert len(read) <= 3
        seen += [item.id for item in page.messages]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == (stored_ids[::-1] if newest_first else stored_ids)
