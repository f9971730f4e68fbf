"""Reads messages from PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from strata.protocol.errors import NotFoundError, Reason
from strata.recall.domain.messages import (
    Cursor,
    Message,
    MessageFilter,
    MessagePage,
)
from strata.recall.store.log import POSITION, log_sql
from strata.recall.store.rows import COLUMNS, to_message
from strata.recall.store.window_check import check_windows
from strata.shared.context import current_project
from strata.shared.db import PAGE_BYTES, Database, DatabaseConnection, rows_that_fit, sql
from strata.shared.messages import MessageRole

_GET = sql(f"SELECT {COLUMNS} FROM recall.messages WHERE project_id = :project AND id = :id")
_POSITION = sql(POSITION)
_SUMMARY = sql(
    f"""
    SELECT {COLUMNS} FROM recall.messages
    WHERE project_id = :project AND conversation_id = :conversation AND role = 'summary'
      AND id = ANY(SELECT unnest(message_ids) FROM recall.windows
                   WHERE project_id = :project AND conversation_id = :conversation)
    ORDER BY sequence DESC LIMIT 1
    """
)
_NEXT = sql(log_sql(["m.sequence >= :first", "m.sequence <= :last"]))


class PostgresMessageStore:
    """Implements `MessageStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, message_id: str) -> Message:
        """Returns a message."""
        async with self._database.transaction(read_only=True) as connection:
            result = await connection.execute(
                _GET, {"project": current_project(), "id": message_id}
            )
            row = result.one_or_none()
        if row is None:
            raise missing(message_id)
        return to_message(row)

    async def page(
        self, message_filter: MessageFilter, limit: int, cursor: Cursor | None
    ) -> MessagePage:
        """Returns a page: of a conversation by sequence, or of all of an agent's by time."""
        async with self._database.transaction(read_only=True) as connection:
            if message_filter.conversation_id:
                message_filter = await self._with_ends(connection, message_filter)
                statement, values = _of_conversation(message_filter, cursor)
            else:
                statement, values = _of_agent(message_filter, cursor)
            values |= {"project": current_project(), "limit": limit + 1}
            values["page_bytes"] = PAGE_BYTES
            rows = (
                await connection.execute(sql(_within_page(statement, message_filter)), values)
            ).all()
        if not rows and cursor is None:
            # Checked only now, so that a page with messages costs no further statement.
            await check_windows(
                self._database, message_filter.agent_id, message_filter.conversation_id
            )
        messages = [to_message(row) for row in rows[:limit]]
        messages = messages[: rows_that_fit(messages)]
        if not rows or len(messages) == rows[0].found_count:
            return MessagePage(messages)
        last = messages[-1]
        return MessagePage(
            messages,
            (last.sequence,) if message_filter.conversation_id else (last.create_time, last.id),
        )

    async def newest_summary(self, conversation_id: str) -> Message | None:
        """Returns the newest summary in a window."""
        values = {"project": current_project(), "conversation": conversation_id}
        async with self._database.transaction(read_only=True) as connection:
            row = (await connection.execute(_SUMMARY, values)).one_or_none()
        return None if row is None else to_message(row)

    async def first_since(
        self, conversation_id: str, since: datetime, first: int, last: int
    ) -> int | None:
        """Returns the first sequence of a range whose message was stored at a time or later."""
        low, high = first, last + 1
        async with self._database.transaction(read_only=True) as connection:
            while low < high:
                middle = (low + high) // 2
                result = await connection.execute(
                    _NEXT,
                    {
                        "project": current_project(),
                        "conversation": conversation_id,
                        "first": middle,
                        "last": last,
                        "limit": 1,
                    },
                )
                row = result.one_or_none()
                if row is None or row.create_time >= since:
                    high = middle
                else:
                    low = row.sequence + 1
        return low if low <= last else None

    async def _with_ends(
        self, connection: DatabaseConnection, message_filter: MessageFilter
    ) -> MessageFilter:
        """Returns the filter with the message ids of its range replaced by sequences."""
        ends = {}
        for name, message_id in (
            ("from_sequence", message_filter.from_id),
            ("to_sequence", message_filter.to_id),
        ):
            if message_id:
                result = await connection.execute(
                    _POSITION,
                    {
                        "project": current_project(),
                        "conversation": message_filter.conversation_id,
                        "id": message_id,
                    },
                )
                ends[name] = result.scalar()
                if ends[name] is None:
                    raise missing(message_id)
        return replace(message_filter, **ends)


def _within_page(statement: str, message_filter: MessageFilter) -> str:
    """Limits a query to the first messages that fill a page, by size.

    A message may have a mebibyte, and a response has space for two of these, so the database must
    not send 500. `found_count` is the number of rows without this limit.
    """
    direction = "DESC" if message_filter.newest_first else "ASC"
    keys = ("sequence",) if message_filter.conversation_id else ("create_time", "id")
    order = ", ".join(f"{key} {direction}" for key in keys)
    return f"""
        WITH selected AS MATERIALIZED ({statement}), measured AS (
            SELECT selected.*, count(*) OVER () AS found_count,
                   sum(octet_length(parts::text)) OVER (
                       ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                   ) AS bytes_before
            FROM selected
        )
        SELECT {COLUMNS}, found_count FROM measured
        WHERE coalesce(bytes_before, 0) <= :page_bytes ORDER BY {order}
    """


def _of_conversation(
    message_filter: MessageFilter, cursor: Cursor | None
) -> tuple[str, dict[str, Any]]:
    conditions, values = _conditions(message_filter)
    values["conversation"] = message_filter.conversation_id
    if message_filter.from_sequence:
        conditions.append("m.sequence >= :range_from")
        values["range_from"] = message_filter.from_sequence
    if message_filter.to_sequence is not None:
        conditions.append("m.sequence <= :range_to")
        values["range_to"] = message_filter.to_sequence
    if cursor is not None:
        conditions.append(f"m.sequence {'<' if message_filter.newest_first else '>'} :after")
        values["after"] = cursor[0]
    return log_sql(conditions, newest_first=message_filter.newest_first), values


def _of_agent(message_filter: MessageFilter, cursor: Cursor | None) -> tuple[str, dict[str, Any]]:
    conditions, values = _conditions(message_filter)
    values["agent"] = message_filter.agent_id
    if not message_filter.pinned_only:
        conditions.append("m.copied_from_id = ''")
    if cursor is not None:
        sign = "<" if message_filter.newest_first else ">"
        conditions.append(f"(m.create_time, m.id) {sign} (:after_time, :after_id)")
        values |= {"after_time": cursor[0], "after_id": cursor[1]}
    direction = "DESC" if message_filter.newest_first else "ASC"
    statement = f"""
        SELECT {COLUMNS} FROM recall.messages m
        WHERE {" AND ".join(["m.project_id = :project", "m.agent_id = :agent", *conditions])}
        ORDER BY m.create_time {direction}, m.id {direction} LIMIT :limit
    """
    return statement, values


def _conditions(message_filter: MessageFilter) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    values: dict[str, Any] = {}
    if set(message_filter.roles) == {MessageRole.SUMMARY}:
        # A constant, because summaries have an index of their own: they are few in a long log.
        conditions.append("m.role = 'summary'")
    elif message_filter.roles:
        conditions.append("m.role = ANY(CAST(:roles AS text[]))")
        values["roles"] = [role.value for role in message_filter.roles]
    if message_filter.run_id:
        conditions.append("m.run_id = :run")
        values["run"] = message_filter.run_id
    if message_filter.pinned_only:
        conditions.append("m.pinned")
    return conditions, values


def missing(message_id: str) -> NotFoundError:
    """Returns the error for a message that does not exist."""
    return NotFoundError(
        f"Message {message_id} does not exist.",
        reason=Reason.MESSAGE_NOT_FOUND,
        metadata={"id": message_id},
    )
