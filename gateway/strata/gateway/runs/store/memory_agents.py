"""Marks of memory agents and their runs in PostgreSQL; see `memory_agents`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from strata.gateway.runs.domain.memory_agents import (
    FIRST_MARK,
    MarkKey,
    MemoryMark,
    TendedTurn,
    TranscriptRead,
    next_run,
)
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.states import OPEN_STATES, RunState
from strata.gateway.runs.payloads import memory_payload
from strata.gateway.runs.store.base import RunTables
from strata.gateway.runs.store.conditions import OPEN
from strata.gateway.runs.store.open_ingestions import begin_ingestion
from strata.shared.db import DatabaseConnection, Row, SqlStatement, sql

_MARK = """mark.agent_id, mark.conversation_id, mark.memory_agent_id, mark.frequency,
    mark.turns_counter, mark.newest_sequence, mark.newest_message_id,
    mark.last_processed_sequence, mark.last_processed_message_id, mark.due, mark.run_id,
    mark.run_count, mark.until_sequence, mark.until_message_id, mark.failures, mark.last_error,
    mark.file_id, mark.file_name, mark.block_label"""
# The mark is kept when an agent gets another memory agent, so nothing is read twice.
_NOTE_TURN = sql(f"""
INSERT INTO gateway.memory_agents AS mark (
    project_id, agent_id, conversation_id, memory_agent_id, frequency, turns_counter,
    newest_sequence, newest_message_id, last_processed_sequence)
VALUES (:project_id, :agent_id, :conversation_id, :memory_agent_id, :frequency, 0,
        greatest(CAST(:sequence AS bigint), CAST(:read_before AS bigint)), :message_id,
        CAST(:read_before AS bigint))
    ON CONFLICT (project_id, agent_id, conversation_id) DO UPDATE
   SET memory_agent_id = :memory_agent_id, frequency = :frequency,
       turns_counter = mark.turns_counter + 1,
       newest_message_id = CASE WHEN :sequence > mark.newest_sequence THEN :message_id
                                ELSE mark.newest_message_id END,
       newest_sequence = greatest(mark.newest_sequence, :sequence)
RETURNING {_MARK}
""")
_LOCK = f"SELECT {_MARK} FROM gateway.memory_agents mark WHERE project_id = :project_id"
_LOCK_BY_RUN = sql(f"{_LOCK} AND run_id = :run_id FOR UPDATE")
_LOCK_BY_CONVERSATION = sql(
    f"{_LOCK} AND agent_id = :agent_id AND conversation_id = :conversation_id FOR UPDATE"
)
_RUN = sql("""
SELECT state, run_at FROM gateway.runs WHERE project_id = :project_id AND id = :run_id
""")
_WRITE = sql("""
UPDATE gateway.memory_agents
   SET last_processed_sequence = :processed_sequence,
       last_processed_message_id = :processed_message_id, due = :due,
       run_id = CAST(:run_id AS text), run_count = :run_count,
       until_sequence = :until_sequence, until_message_id = :until_message_id,
       failures = :failures, last_error = :last_error
 WHERE project_id = :project_id AND agent_id = :agent_id AND conversation_id = :conversation_id
""")
# The principal is copied from the run before it.
_QUEUE = sql("""
INSERT INTO gateway.runs (
    project_id, id, organization_id, principal, scopes, agent_id, conversation_id, kind,
    request_id, payload, payload_hash, max_steps, parent_run_id, state, attempt, run_at)
SELECT project_id, :id, organization_id, principal, scopes, :agent_id, :conversation_id,
       'SLEEPTIME', :request_id, :payload, :payload_hash, 0, CAST(:parent_run_id AS text),
       'QUEUED', 0, now() + make_interval(secs => :pause_s)
  FROM gateway.runs WHERE project_id = :project_id AND id = :source_id
""")
_QUEUE_FIRST = sql("""
INSERT INTO gateway.runs (
    project_id, id, organization_id, principal, scopes, agent_id, conversation_id, kind,
    request_id, payload, payload_hash, max_steps, state, attempt, run_at)
VALUES (:project_id, :id, :organization_id, :principal, CAST(:scopes AS text[]), :agent_id,
        :conversation_id, 'SLEEPTIME', :request_id, :payload, :payload_hash, 0, 'QUEUED', 0, now())
""")
_START_DOCUMENT = sql("""
INSERT INTO gateway.memory_agents (
    project_id, agent_id, conversation_id, memory_agent_id, frequency, newest_sequence, file_id,
    file_name, block_label)
VALUES (:project_id, :agent_id, :conversation_id, :memory_agent_id, :frequency, :newest_sequence,
        :file_id, :file_name, :block_label)
    ON CONFLICT DO NOTHING RETURNING agent_id
""")
_RETIRE_DOCUMENT = sql("""
UPDATE gateway.memory_agents SET memory_agent_id = ''
 WHERE project_id = :project_id AND agent_id = :agent_id AND conversation_id = :conversation_id
   AND file_id <> ''
""")
_BEGIN_NOW = sql("""
UPDATE gateway.runs SET run_at = now()
 WHERE project_id = :project_id AND id = :run_id AND state = 'QUEUED' AND run_at > now()
""")
_MARKS = f"""
SELECT {_MARK}, run.state, run.run_at
  FROM gateway.memory_agents mark
  LEFT JOIN gateway.runs run ON run.project_id = mark.project_id AND run.id = mark.run_id
 WHERE mark.project_id = :project_id
"""
_PAGE_OF_AGENT = """
SELECT page.agent_id, page.conversation_id
  FROM wanted CROSS JOIN LATERAL (
    SELECT agent_id, conversation_id FROM gateway.memory_agents
     WHERE project_id = :project_id AND {which} = wanted.id
       AND (agent_id, conversation_id)
           > (CAST(:after_agent_id AS text), CAST(:after_conversation_id AS text))
     ORDER BY {which}, agent_id, conversation_id
     LIMIT :limit
  ) page
"""
# Each agent is looked up in an index: with a condition on a list of agents, PostgreSQL would read
# the marks of the whole project in their order.
MARKS_OF_AGENTS = sql(f"""
WITH wanted AS (
    SELECT DISTINCT id FROM unnest(CAST(:agent_ids AS text[])) AS ids (id)
), page AS (
    {_PAGE_OF_AGENT.format(which="agent_id")}
    UNION
    {_PAGE_OF_AGENT.format(which="memory_agent_id")}
     ORDER BY agent_id, conversation_id
     LIMIT :limit
)
SELECT {_MARK}, run.state, run.run_at
  FROM page
  JOIN gateway.memory_agents mark
    ON mark.project_id = :project_id AND mark.agent_id = page.agent_id
       AND mark.conversation_id = page.conversation_id
  LEFT JOIN gateway.runs run ON run.project_id = mark.project_id AND run.id = mark.run_id
 ORDER BY mark.agent_id, mark.conversation_id
""")
_DOCUMENT_MARKS = sql(f"""
{_MARKS}
   AND mark.agent_id = :agent_id AND mark.file_id <> ''
 ORDER BY mark.conversation_id
""")
_MARK_OF_CONVERSATION = sql(f"""
{_MARKS}
   AND mark.agent_id = :agent_id AND mark.conversation_id = :conversation_id
""")
FORGET = sql(f"""
WITH deleted_marks AS (
    DELETE FROM gateway.memory_agents
     WHERE project_id = :project_id
       -- What a deleted agent has read of a file stays read.
       AND (agent_id = :agent_id OR memory_agent_id = :agent_id AND file_id = '')
    RETURNING run_id
)
SELECT run.id FROM deleted_marks JOIN gateway.runs run
    ON run.project_id = :project_id AND run.id = deleted_marks.run_id
 WHERE run.state IN ({OPEN})
""")


async def note_turn(
    connection: DatabaseConnection,
    project_id: str,
    run: tuple[str, str, str],
    turn: TendedTurn,
) -> None:
    """Records the end of a turn, and queues a run of the memory agent if one is due.

    Part of the transaction that ends the turn.

    Args:
        connection: The transaction.
        project_id: The project.
        run: Id, agent and conversation of the run whose turn it was.
        turn: The turn.
    """
    run_id, agent_id, conversation_id = run
    sequence, message_id = turn.readable
    values = {
        "project_id": project_id,
        "agent_id": agent_id,
        "conversation_id": conversation_id,
        "memory_agent_id": turn.memory_agent_id,
        "frequency": turn.frequency,
        "sequence": sequence,
        "message_id": message_id,
        "read_before": turn.read_before,
    }
    row = (await connection.execute(_NOTE_TURN, values)).one()
    mark = mark_of({**row, "state": None, "run_at": None})
    if not (turn.is_due(mark) or mark.due):
        return
    if await _is_open(connection, project_id, mark):
        # After the open run of a voice agent's memory agent, the window may no longer be full, so
        # the next turn decides.
        if not mark.removes_messages:
            await _write(connection, project_id, mark, due=True)
    elif mark.pending > 0:
        await _queue(connection, project_id, mark, source_id=run_id, parent_run_id=run_id)


async def note_end(
    connection: DatabaseConnection,
    project_id: str,
    run_id: str,
    state: RunState,
    failure: tuple[str, str] = ("", ""),
    read: TranscriptRead | None = None,
) -> None:
    """Moves the mark after the end of a memory agent's run, and queues the next run if it is due.

    Part of the transaction that ends the run.

    Args:
        connection: The transaction.
        project_id: The project.
        run_id: The run.
        state: Its final state.
        failure: Reason and message if it failed.
        read: How far it has read its range; None for the whole range.
    """
    values = {"project_id": project_id, "run_id": run_id}
    row = (await connection.execute(_LOCK_BY_RUN, values)).one_or_none()
    if row is None:
        # The agent, or its memory agent, was deleted.
        return
    mark = mark_of({**row, "state": None, "run_at": None})
    mark = mark.read_until(read).after_run(state, *failure)
    await begin_ingestion(connection, project_id, mark.agent_id, run_id)
    if mark.due and mark.pending > 0:
        await _queue(connection, project_id, mark, source_id=run_id)
    else:
        await _write(connection, project_id, mark)


async def start_now(
    connection: DatabaseConnection, project_id: str, agent_id: str, conversation_id: str
) -> MemoryMark | None:
    """See `MemoryRunStore.start_memory_run`."""
    values = {
        "project_id": project_id,
        "agent_id": agent_id,
        "conversation_id": conversation_id,
    }
    row = (await connection.execute(_LOCK_BY_CONVERSATION, values)).one_or_none()
    if row is None:
        return None
    mark = mark_of({**row, "state": None, "run_at": None})
    if await _is_open(connection, project_id, mark):
        await connection.execute(_BEGIN_NOW, {"project_id": project_id, "run_id": mark.run_id})
    elif mark.pending > 0:
        source = await connection.execute(_LAST_RUN, values)
        source_id = source.scalar_one()
        await _queue(connection, project_id, mark, source_id=source_id, pause_s=0.0)
    return mark_of((await connection.execute(_MARK_OF_CONVERSATION, values)).one())


_LAST_RUN = sql("""
SELECT id FROM gateway.runs
 WHERE project_id = :project_id AND conversation_id = :conversation_id ORDER BY id DESC LIMIT 1
""")


def mark_of(row: Row | Mapping[str, Any]) -> MemoryMark:
    """Returns the mark in a row, with the state of its last run."""
    run_open = row["state"] is not None and RunState(row["state"]) in OPEN_STATES
    return MemoryMark(
        agent_id=row["agent_id"],
        conversation_id=row["conversation_id"],
        memory_agent_id=row["memory_agent_id"],
        frequency=row["frequency"],
        turns_counter=row["turns_counter"],
        newest_sequence=row["newest_sequence"],
        newest_message_id=row["newest_message_id"],
        processed_sequence=row["last_processed_sequence"],
        processed_message_id=row["last_processed_message_id"],
        due=row["due"],
        run_id=row["run_id"] or "",
        run_count=row["run_count"],
        until_sequence=row["until_sequence"],
        until_message_id=row["until_message_id"],
        failures=row["failures"],
        last_error=row["last_error"],
        run_open=run_open,
        run_at=row["run_at"] if run_open else None,
        file_id=row["file_id"],
        file_name=row["file_name"],
        block_label=row["block_label"],
    )


async def _is_open(connection: DatabaseConnection, project_id: str, mark: MemoryMark) -> bool:
    """Whether the last run of a locked mark is open.

    A run that ends meanwhile waits for the lock of the mark, and then sees the changes made here.
    """
    if not mark.run_id:
        return False
    values = {"project_id": project_id, "run_id": mark.run_id}
    row = (await connection.execute(_RUN, values)).one_or_none()
    return row is not None and RunState(row["state"]) in OPEN_STATES


async def _queue(
    connection: DatabaseConnection,
    project_id: str,
    mark: MemoryMark,
    *,
    source_id: str,
    parent_run_id: str = "",
    pause_s: float | None = None,
) -> None:
    marked, run = next_run(mark)
    payload = memory_payload(marked, run)
    await connection.execute(
        _QUEUE,
        {
            "project_id": project_id,
            "id": run.id,
            "agent_id": run.agent_id,
            "conversation_id": run.conversation_id,
            "request_id": run.request_id,
            "payload": payload,
            "payload_hash": hashlib.sha256(payload).digest(),
            "parent_run_id": parent_run_id or None,
            "pause_s": run.pause_s if pause_s is None else pause_s,
            "source_id": source_id,
        },
    )
    await _write(connection, project_id, marked)


async def _write(
    connection: DatabaseConnection, project_id: str, mark: MemoryMark, *, due: bool | None = None
) -> None:
    await connection.execute(
        _WRITE,
        {
            "project_id": project_id,
            "agent_id": mark.agent_id,
            "conversation_id": mark.conversation_id,
            "processed_sequence": mark.processed_sequence,
            "processed_message_id": mark.processed_message_id,
            "due": mark.due if due is None else due,
            "run_id": mark.run_id or None,
            "run_count": mark.run_count,
            "until_sequence": mark.until_sequence,
            "until_message_id": mark.until_message_id,
            "failures": mark.failures,
            "last_error": mark.last_error,
        },
    )


class PostgresMemoryRuns(RunTables):
    """Implements `memory_agents.MemoryRunStore`, without the claims."""

    async def memory_marks(
        self, project_id: str, agent_ids: Sequence[str], *, after: MarkKey = FIRST_MARK, limit: int
    ) -> Sequence[MemoryMark]:
        """See `MemoryRunStore.memory_marks`."""
        after_agent_id, after_conversation_id = after
        values = {
            "project_id": project_id,
            "agent_ids": list(agent_ids),
            "after_agent_id": after_agent_id,
            "after_conversation_id": after_conversation_id,
            "limit": limit,
        }
        return await self._read_marks(project_id, MARKS_OF_AGENTS, values)

    async def document_marks(self, project_id: str, agent_id: str) -> Sequence[MemoryMark]:
        """See `MemoryRunStore.document_marks`."""
        values = {"project_id": project_id, "agent_id": agent_id}
        return await self._read_marks(project_id, _DOCUMENT_MARKS, values)

    async def _read_marks(
        self, project_id: str, statement: SqlStatement, values: Mapping[str, object]
    ) -> Sequence[MemoryMark]:
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = (await connection.execute(statement, values)).all()
        return [mark_of(row) for row in rows]

    async def start_memory_run(
        self, project_id: str, agent_id: str, conversation_id: str
    ) -> MemoryMark | None:
        """See `MemoryRunStore.start_memory_run`."""
        async with self._database.transaction(project_id=project_id) as connection:
            return await start_now(connection, project_id, agent_id, conversation_id)

    async def start_document(self, mark: MemoryMark, principal: Principal) -> MemoryMark | None:
        """See `MemoryRunStore.start_document`."""
        values = {
            "project_id": principal.project_id,
            "agent_id": mark.agent_id,
            "conversation_id": mark.conversation_id,
            "memory_agent_id": mark.memory_agent_id,
            "frequency": mark.frequency,
            "newest_sequence": mark.newest_sequence,
            "file_id": mark.file_id,
            "file_name": mark.file_name,
            "block_label": mark.block_label,
        }
        async with self._database.transaction(project_id=principal.project_id) as connection:
            if (await connection.execute(_START_DOCUMENT, values)).one_or_none() is None:
                return None
            marked, run = next_run(mark)
            payload = memory_payload(marked, run)
            await connection.execute(
                _QUEUE_FIRST,
                {
                    "project_id": principal.project_id,
                    "organization_id": principal.organization_id,
                    "principal": principal.name,
                    "scopes": sorted(principal.scopes),
                    "id": run.id,
                    "agent_id": run.agent_id,
                    "conversation_id": run.conversation_id,
                    "request_id": run.request_id,
                    "payload": payload,
                    "payload_hash": hashlib.sha256(payload).digest(),
                },
            )
            await _write(connection, principal.project_id, marked)
        return marked

    async def retire_document(self, project_id: str, agent_id: str, conversation_id: str) -> None:
        """See `MemoryRunStore.retire_document`."""
        values = {
            "project_id": project_id,
            "agent_id": agent_id,
            "conversation_id": conversation_id,
        }
        async with self._database.transaction(project_id=project_id) as connection:
            await connection.execute(_RETIRE_DOCUMENT, values)

    async def forget_memory_agent(self, project_id: str, agent_id: str) -> Sequence[str]:
        """See `MemoryRunStore.forget_memory_agent`."""
        values = {"project_id": project_id, "agent_id": agent_id}
        async with self._database.transaction(project_id=project_id) as connection:
            return (await connection.execute(FORGET, values)).scalars()
