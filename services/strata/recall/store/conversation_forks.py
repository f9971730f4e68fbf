"""Creates forks in PostgreSQL: a new window with the messages of another at some message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.protocol.errors import NotFoundError, Reason
from strata.recall.domain.conversation_forks import in_window_order, unanswered_calls, with_returns
from strata.recall.domain.messages import Message
from strata.recall.store.images import copy_images
from strata.recall.store.log import POSITION, log_sql
from strata.recall.store.messages import missing
from strata.recall.store.rows import BY_ID, to_message
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, sql
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

_FOLLOWING = 100
# Row limit of queries for a window's messages: more than any window has.
_WHOLE = 100_000

_THERE = sql(
    "SELECT 1 FROM recall.windows WHERE project_id = :project AND conversation_id = :conversation"
)
# Retention waits for the lock, so no message is deleted while it is copied.
_SOURCE = sql(
    """
    SELECT * FROM recall.windows
    WHERE project_id = :project AND conversation_id = :conversation FOR SHARE
    """
)
_ANCESTORS = sql(
    """
    SELECT conversation_id FROM recall.windows
    WHERE project_id = :project AND conversation_id = ANY(CAST(:ids AS text[]))
    ORDER BY conversation_id FOR SHARE
    """
)
_POSITION = sql(POSITION)
_NEWEST_SUMMARY = sql(log_sql(["m.role = 'summary'", "m.sequence <= :until"], newest_first=True))
_KEPT = sql(
    "SELECT kept FROM recall.compactions"
    " WHERE project_id = :project AND conversation_id = :conversation AND sequence = :sequence"
)
_SINCE = sql(
    log_sql(
        [
            "m.sequence <= :until",
            "(m.sequence > :since OR m.sequence = 0 OR m.sequence = ANY(CAST(:kept AS bigint[])))",
            "(m.role <> 'summary' OR m.sequence = ANY(CAST(:kept AS bigint[])))",
        ]
    )
)
_KEPT_BY_RANGE = sql(
    log_sql(["m.sequence > :after", "m.sequence < :before", "m.role <> 'summary'"])
)
_PINNED = sql(log_sql(["m.pinned", "m.agent_id = :agent", "m.sequence <= :until"]))
_OF_RUNS = sql(log_sql(["m.run_id = ANY(CAST(:runs AS text[]))", "m.step > 0"]))
_FOLLOWING_ROWS = sql(log_sql(["m.sequence > :after"]))

_OPEN = sql(
    """
    INSERT INTO recall.windows (
        project_id, conversation_id, agent_id, message_ids, revision, message_count,
        metadata_stale, search_language, active_run_id, attempt, committed_steps,
        ancestor_ids, ancestor_untils
    )
    SELECT :project, :fork, agent_id, CAST(:ids AS text[]), 1, :count, true, search_language,
           '', 0, 0, CAST(:ancestors AS text[]), CAST(:untils AS bigint[])
    FROM recall.windows WHERE project_id = :project AND conversation_id = :conversation
    ON CONFLICT (project_id, conversation_id) DO NOTHING
    """
)
# Searches find the original, so a copy is not indexed and has no search words.
_COPY = sql(
    """
    INSERT INTO recall.messages (
        project_id, conversation_id, agent_id, sequence, id, role, parts, name, run_id, step_id,
        step, group_id, model, usage, provenance, pinned, client_message_id, create_time,
        search_words, search_pairs, index_state, search_language, copied_from_id
    )
    SELECT m.project_id, :fork, m.agent_id, m.sequence, copied.copy_id, m.role, m.parts, m.name,
           m.run_id, m.step_id, m.step, m.group_id, m.model, m.usage, m.provenance, m.pinned,
           m.client_message_id, m.create_time, '', '', 'none', m.search_language,
           coalesce(nullif(m.copied_from_id, ''), m.id)
    FROM unnest(CAST(:ids AS text[]), CAST(:copies AS text[])) AS copied(id, copy_id)
    JOIN recall.messages m ON m.project_id = :project AND m.id = copied.id
    """
)
_NOTE = sql(
    """
    INSERT INTO recall.compactions (
        project_id, conversation_id, sequence, agent_id, kept, first_message_id, last_message_id
    )
    SELECT c.project_id, :fork, c.sequence, c.agent_id, CAST(:kept AS bigint[]),
           c.first_message_id, c.last_message_id
    FROM recall.compactions c
    WHERE c.project_id = :project AND c.conversation_id = :conversation AND c.sequence = :sequence
    """
)


@dataclass(frozen=True, slots=True)
class _Source:
    """The conversation that is forked, locked in a transaction."""

    connection: DatabaseConnection
    conversation_id: str
    agent_id: str
    window_ids: Sequence[str]
    message_count: int
    ancestors: Sequence[tuple[str, int]]
    project: str = field(default_factory=current_project)

    async def log(self, statement: Any, **values: Any) -> list[Message]:
        """Returns messages of the conversation and its ancestors."""
        bound = {
            "project": self.project,
            "conversation": self.conversation_id,
            "limit": _WHOLE,
            **values,
        }
        return [to_message(row) for row in await self.connection.execute(statement, bound)]


class PostgresForkStore:
    """Implements `ForkStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def fork(self, source_id: str, conversation_id: str, until_id: str) -> None:
        """Creates a conversation with the window that another one had at a message."""
        project = current_project()
        async with self._database.transaction() as connection:
            there = await connection.execute(
                _THERE, {"project": project, "conversation": conversation_id}
            )
            if there.first() is not None:
                return
            source = await _locked(connection, project, source_id)
            until = await _until(source, until_id)
            messages = await _window_at(source, until)
            await _write(source, conversation_id, messages, await _end(source, until, messages))


async def _locked(connection: DatabaseConnection, project: str, conversation_id: str) -> _Source:
    result = await connection.execute(
        _SOURCE, {"project": project, "conversation": conversation_id}
    )
    row = result.one_or_none()
    if row is None:
        raise NotFoundError(
            f"Conversation {conversation_id} has no window.",
            reason=Reason.WINDOW_NOT_FOUND,
            metadata={"id": conversation_id},
        )
    if row.ancestor_ids:
        await connection.execute(_ANCESTORS, {"project": project, "ids": list(row.ancestor_ids)})
    return _Source(
        connection,
        conversation_id,
        row.agent_id,
        row.message_ids,
        row.message_count,
        list(zip(row.ancestor_ids, row.ancestor_untils, strict=True)),
        project,
    )


async def _until(source: _Source, message_id: str) -> int:
    if not message_id:
        return source.message_count - 1
    result = await source.connection.execute(
        _POSITION,
        {"project": source.project, "conversation": source.conversation_id, "id": message_id},
    )
    position: int | None = result.scalar()
    if position is None:
        raise missing(message_id)
    return position


async def _window_at(source: _Source, until: int) -> list[Message]:
    """Returns the window at a message, completed by the returns of its open calls."""
    rows = await source.connection.execute(
        BY_ID, {"project": source.project, "ids": list(source.window_ids)}
    )
    now = [to_message(row) for row in rows]
    if all(m.sequence <= until for m in now if m.role is MessageRole.SUMMARY):
        # There was no compaction since, so these messages are still in the window.
        window = in_window_order(m for m in now if m.sequence <= until)
    else:
        window = in_window_order(await _earlier_window(source, until))
    while calls := unanswered_calls(window):
        after = max(message.sequence for message in window)
        following = await source.log(_FOLLOWING_ROWS, after=after, limit=_FOLLOWING)
        if not following:
            raise AssertionError(f"calls without a return are stored: {sorted(calls)}")
        window = with_returns(window, following)
    return window


async def _end(source: _Source, until: int, window: Sequence[Message]) -> int:
    """Returns the sequence of the last message in the log of the fork.

    A window that was emptied since has no message of that time, but the log still ends there.
    """
    last = max(message.sequence for message in window)
    if last >= until:
        return last
    messages = await source.log(_FOLLOWING_ROWS, after=until - 1, limit=_FOLLOWING)
    if not messages or messages[0].sequence > until:
        # The message was deleted.
        return until
    return with_returns(messages[:1], messages[1:])[-1].sequence


async def _earlier_window(source: _Source, until: int) -> list[Message]:
    """Reconstructs the window from the log, as before later compactions."""
    summaries = await source.log(_NEWEST_SUMMARY, until=until, limit=1)
    kept_sequences: list[int] = []
    since = 0
    for summary in summaries:
        since = summary.sequence
        kept_sequences = [since, *await _kept(source, summary)]
    messages = await source.log(_SINCE, until=until, since=since, kept=kept_sequences)
    # Uses the current pins; a step with a pinned message is included completely.
    pinned = await source.log(_PINNED, until=until, agent=source.agent_id)
    runs = sorted({message.run_id for message in pinned if message.step > 0})
    steps = {(message.run_id, message.step) for message in pinned}
    beside = await source.log(_OF_RUNS, runs=runs) if runs else []
    return [*messages, *pinned, *(m for m in beside if (m.run_id, m.step) in steps)]


async def _kept(source: _Source, summary: Message) -> list[int]:
    result = await source.connection.execute(
        _KEPT,
        {
            "project": source.project,
            "conversation": summary.conversation_id,
            "sequence": summary.sequence,
        },
    )
    row = result.one_or_none()
    if row is not None and row.kept is not None:
        return list(row.kept)
    # Summaries older than the table of compactions: use the messages after their range.
    last = max((int(part.get("last_sequence", 0)) for part in summary.parts), default=0)
    between = await source.log(_KEPT_BY_RANGE, after=last, before=summary.sequence)
    return [message.sequence for message in between]


async def _write(source: _Source, fork: str, messages: Sequence[Message], end: int) -> None:
    copies = [new_id("message") for _ in messages]
    ancestors = [(source.conversation_id, end)]
    ancestors += [(ancestor, min(until, end)) for ancestor, until in source.ancestors]
    bound: dict[str, Any] = {
        "project": source.project,
        "conversation": source.conversation_id,
        "fork": fork,
    }
    opened = await source.connection.execute(
        _OPEN,
        {
            **bound,
            "ids": copies,
            "count": end + 1,
            "ancestors": [ancestor for ancestor, _ in ancestors],
            "untils": [until for _, until in ancestors],
        },
    )
    if not opened.rowcount:
        return
    await source.connection.execute(
        _COPY,
        {
            "project": source.project,
            "fork": fork,
            "ids": [message.id for message in messages],
            "copies": copies,
        },
    )
    await copy_images(source.connection, source.project, messages, copies)
    for summary in messages:
        if summary.role is MessageRole.SUMMARY:
            before = [m.sequence for m in messages if 0 < m.sequence < summary.sequence]
            await source.connection.execute(
                _NOTE,
                {
                    "project": source.project,
                    "conversation": summary.conversation_id,
                    "fork": fork,
                    "sequence": summary.sequence,
                    "kept": before,
                },
            )
