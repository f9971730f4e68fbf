"""Stores windows in PostgreSQL.

Each write is one statement whose first part is a guarded UPDATE of the window's row.
That row is the lock and the fence: PostgreSQL checks the guard again after waiting
for it, so of two writers exactly one passes. When none passes, a second query finds
the reason: repeated, stale, or missing. The statement is a separate transaction,
unless images are stored with it.

`rewrite_revision` is the revision of the last change that was not an addition at the end
or a new text of the system message: what a caller holds since then is still in the window.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from strata.protocol.errors import (
    AbortedError,
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.recall.domain.eviction import remaining_messages
from strata.recall.domain.messages import (
    CommittedStep,
    Compaction,
    HeldWindow,
    Message,
    Part,
    Step,
    TurnStart,
    Window,
)
from strata.recall.store.images import delete_unused_images, store_images
from strata.recall.store.rows import (
    BY_ID,
    BY_RUN,
    INSERT_COLUMNS,
    RECORD,
    RECORD_COLUMNS,
    named_sql,
    prefixed_columns,
    to_message,
    to_prefixed_message,
    to_records,
)
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, Row, SqlStatement, sql
from strata.shared.messages import MessageRole

_INSERT = f"""
    INSERT INTO recall.messages ({INSERT_COLUMNS})
    SELECT :project, w.conversation_id, w.agent_id, w.first_sequence + r.ordinal,
           {RECORD_COLUMNS}, w.search_language
    FROM updated_window w, jsonb_to_recordset(CAST(:records AS jsonb)) AS r({RECORD})
"""

_OPEN = sql(
    f"""
    WITH updated_window AS (
        INSERT INTO recall.windows (
            project_id, conversation_id, agent_id, message_ids, revision, message_count,
            metadata_stale, search_language, active_run_id, attempt, committed_steps
        ) VALUES (
            :project, :conversation, :agent, CAST(:ids AS text[]), 1, CAST(:count AS integer),
            false, CAST(CAST(:language AS text) AS regconfig), '', 0, 0
        )
        ON CONFLICT (project_id, conversation_id) DO NOTHING
        RETURNING conversation_id, agent_id, search_language, 0 AS first_sequence
    ), new_messages AS ({_INSERT})
    SELECT conversation_id FROM updated_window
    """
)

# The first run of a window sees the messages that the window was opened with. An approval message
# without a later tool return belongs to a request that this run completes.
_CLEARS = """
    CASE WHEN active_run_id = '' THEN false ELSE NOT EXISTS (
        SELECT 1 FROM recall.messages a
        WHERE a.project_id = :project AND a.id = ANY(message_ids) AND a.role = 'approval'
          AND NOT EXISTS (
              SELECT 1 FROM recall.messages t
              WHERE t.project_id = :project AND t.id = ANY(message_ids) AND t.role = 'tool'
                AND t.sequence > a.sequence)) END
"""
# A step with a pinned message stays complete, and so does the boot call, so that every call has
# its return. Approval messages are dropped: models do not see them without the step that answers.
_KEPT = f"""
    SELECT id FROM (
        SELECT m.id, m.sequence,
               m.role <> 'approval' AND (m.pinned OR (
                   (m.step > 0 OR (m.run_id = '' AND m.role IN ('assistant', 'tool')))
                   AND bool_or(m.pinned AND m.role <> 'user')
                       OVER (PARTITION BY m.run_id, m.step)))
                   AS kept
        FROM {named_sql("message_ids[2:]")}
    ) AS window_messages WHERE kept ORDER BY sequence
"""


_SYSTEM = "system_"
_ROW = "SELECT * FROM updated_window"
# The system message as it was when the statement began: if the statement waited for another one,
# its text may be outdated.
_ROW_AND_SYSTEM = f"""
    SELECT w.*, {prefixed_columns("m", _SYSTEM)} FROM updated_window w
    LEFT JOIN LATERAL (
        SELECT * FROM recall.messages
        WHERE project_id = :project AND id = w.message_ids[1] OFFSET 0
    ) m ON true
"""


def _begin_sql(message_ids: str, *, changes: str, stale: str, result: str = _ROW) -> str:
    """Returns the statement that starts a turn.

    Args:
        message_ids: SQL for the messages of the window that stay before the inputs.
        changes: SQL for whether messages are removed.
        stale: SQL for whether the counts in the system message are outdated.
        result: SQL for the result.
    """
    return f"""
    WITH updated_window AS (
        UPDATE recall.windows SET
            active_run_id = :run, attempt = :attempt, committed_steps = 0,
            rewrite_revision = CASE WHEN {changes} THEN revision + 1 ELSE rewrite_revision END,
            message_ids = {message_ids} || CAST(:ids AS text[]),
            message_count = message_count + CAST(:count AS integer),
            revision = revision + CAST(CAST(:count AS integer) > 0 OR {changes} AS integer),
            metadata_stale = {stale}
        WHERE project_id = :project AND conversation_id = :conversation AND agent_id = :agent
          AND NOT EXISTS (
              SELECT 1 FROM recall.turns WHERE project_id = :project AND run_id = :run)
        RETURNING *, message_count - CAST(:count AS integer) AS first_sequence
    ), new_messages AS ({_INSERT}), new_turn AS (
        INSERT INTO recall.turns (project_id, run_id, conversation_id, agent_id)
        SELECT :project, :run, conversation_id, agent_id FROM updated_window
    )
    {result}
    """


_BEGIN = sql(_begin_sql("message_ids", changes="false", stale="metadata_stale"))
_BEGIN_HELD = sql(
    _begin_sql("message_ids", changes="false", stale="metadata_stale", result=_ROW_AND_SYSTEM)
)
_BEGIN_CLEARED = sql(
    _begin_sql(
        f"CASE WHEN {_CLEARS} THEN message_ids[1:1] || ARRAY({_KEPT}) ELSE message_ids END",
        changes=f"({_CLEARS})",
        stale=f"metadata_stale OR (cardinality(message_ids) > 1 AND {_CLEARS})",
    )
)

_TAKE_OVER = sql(
    """
    UPDATE recall.windows SET attempt = :attempt
    WHERE project_id = :project AND conversation_id = :conversation AND agent_id = :agent
      AND active_run_id = :run AND attempt <= :attempt
    RETURNING *
    """
)

_COMMIT = sql(
    f"""
    WITH updated_window AS (
        UPDATE recall.windows SET
            committed_steps = :step,
            message_ids = message_ids[1:1] || message_ids[2 + CAST(:evicted AS integer):]
                || CAST(:ids AS text[]),
            message_count = message_count + CAST(:count AS integer),
            revision = revision + 1,
            rewrite_revision = CASE
                WHEN CAST(:evicted AS integer) > 0 THEN revision + 1 ELSE rewrite_revision END,
            metadata_stale = coalesce(CAST(:stale AS boolean), metadata_stale)
        WHERE project_id = :project AND conversation_id = :conversation AND agent_id = :agent
          AND active_run_id = :run AND attempt = :attempt AND committed_steps = :step - 1
        RETURNING *, message_count - CAST(:count AS integer) AS first_sequence
    ), new_messages AS ({_INSERT}), system_message AS (
        -- Not a join: while the table is new, PostgreSQL would read all messages of the project.
        UPDATE recall.messages SET parts = CAST(:system AS jsonb)
        WHERE CAST(:system AS jsonb) IS NOT NULL
          AND project_id = :project AND id = (SELECT message_ids[1] FROM updated_window)
    )
    SELECT revision, message_count, first_sequence FROM updated_window
    """
)

_COMPACT = sql(
    f"""
    WITH updated_window AS (
        UPDATE recall.windows SET
            message_ids = message_ids[1:1] || CAST(:ids AS text[]) || CAST(:kept AS text[]),
            message_count = message_count + 1,
            revision = revision + 1, rewrite_revision = revision + 1,
            metadata_stale = true
        WHERE project_id = :project AND conversation_id = :conversation
          AND revision = :expected AND CAST(:kept AS text[]) <@ message_ids[2:]
          AND NOT EXISTS (
              SELECT 1 FROM recall.messages m
              WHERE m.project_id = :project AND m.id = ANY(message_ids) AND m.pinned
                AND NOT m.id = ANY(CAST(:kept AS text[])))
          AND (CAST(:run AS text) = '' OR (active_run_id = :run AND attempt = :attempt))
        RETURNING *, message_count - 1 AS first_sequence
    ), new_messages AS ({_INSERT}), new_compaction AS (
        INSERT INTO recall.compactions (
            project_id, conversation_id, sequence, agent_id, kept, first_message_id, last_message_id
        )
        SELECT :project, w.conversation_id, w.first_sequence, w.agent_id, ARRAY(
            SELECT m.sequence FROM {named_sql("CAST(:kept AS text[])")} ORDER BY 1),
            :first_id, :last_id
        FROM updated_window w
    )
    SELECT * FROM updated_window
    """
)

_WINDOW_OF_CONVERSATION = (
    "SELECT * FROM recall.windows WHERE project_id = :project AND conversation_id = :conversation"
)
_WINDOW = sql(_WINDOW_OF_CONVERSATION)
_LOCK_WINDOW = sql(f"{_WINDOW_OF_CONVERSATION} FOR UPDATE")
_EVICT = sql(
    """
    UPDATE recall.windows
    SET message_ids = CAST(:ids AS text[]), revision = revision + 1,
        rewrite_revision = revision + 1, metadata_stale = true
    WHERE project_id = :project AND conversation_id = :conversation
    """
)
# Both are locked first, so that the next statement sees the windows that running transactions open
# and the messages that they add to other windows.
_LOCK_AGENT = "(hashtextextended('agent ' || :project || '/' || :agent, 0))"
_LOCK_EXISTING = sql(f"SELECT pg_advisory_xact_lock_shared{_LOCK_AGENT}")
_LOCK_DELETED = sql(f"SELECT pg_advisory_xact_lock{_LOCK_AGENT}")
_LOCK_WINDOWS = sql(
    """
    SELECT conversation_id FROM recall.windows WHERE project_id = :project AND agent_id = :agent
    ORDER BY conversation_id FOR UPDATE
    """
)
_IS_DELETED = sql(
    "SELECT 1 FROM recall.forgotten_agents WHERE project_id = :project AND agent_id = :agent"
)
# An agent may have a million messages, which one statement would not delete in its time.
_DELETED_AT_ONCE = 10_000
_DELETE = sql(
    """
    WITH windows AS (
        DELETE FROM recall.windows WHERE project_id = :project AND agent_id = :agent
    ), turns AS (
        DELETE FROM recall.turns WHERE project_id = :project AND agent_id = :agent
    ), compactions AS (
        DELETE FROM recall.compactions WHERE project_id = :project AND agent_id = :agent
    ), forgotten_agent AS (
        INSERT INTO recall.forgotten_agents (project_id, agent_id) VALUES (:project, :agent)
        ON CONFLICT (project_id, agent_id) DO UPDATE SET delete_time = now(), swept = false
    ), image_uses AS (
        DELETE FROM recall.message_images WHERE project_id = :project AND agent_id = :agent
        RETURNING image_id
    ), messages AS (
        DELETE FROM recall.messages WHERE project_id = :project AND id IN (
            SELECT id FROM recall.messages WHERE project_id = :project AND agent_id = :agent
            ORDER BY create_time, id LIMIT :count)
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM messages) AS message_count,
           (SELECT array_agg(DISTINCT image_id) FROM image_uses) AS images
    """
)


class PostgresWindowStore:
    """Implements `WindowStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(
        self, conversation_id: str, agent_id: str, messages: Sequence[Message], language: str
    ) -> Window:
        """Creates a window, or returns the existing one."""
        project = current_project()
        of_agent = {"project": project, "agent": agent_id}
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK_EXISTING, of_agent)
            if (await connection.execute(_IS_DELETED, of_agent)).one_or_none() is not None:
                raise _deleted(agent_id)
            opened = await connection.execute(
                _OPEN,
                {
                    **of_agent,
                    "conversation": conversation_id,
                    "language": language,
                    **_new_rows(messages),
                },
            )
            if opened.one_or_none() is not None:
                await store_images(connection, project, agent_id, messages)
            return await self._read(connection, project, conversation_id)

    async def get(self, conversation_id: str) -> Window:
        """Returns a window."""
        async with self._database.transaction(read_only=True) as connection:
            return await self._read(connection, current_project(), conversation_id)

    async def begin_turn(
        self,
        conversation_id: str,
        agent_id: str,
        run_id: str,
        attempt: int,
        inputs: Sequence[Message],
        *,
        clear: bool = False,
        held: HeldWindow | None = None,
    ) -> TurnStart:
        """Stores the inputs of a run once and sets the fence."""
        project = current_project()
        fence = {
            "project": project,
            "conversation": conversation_id,
            "agent": agent_id,
            "run": run_id,
            "attempt": attempt,
        }
        statement = _BEGIN_CLEARED if clear else _BEGIN
        if held is not None and not clear:
            statement = _BEGIN_HELD
        row = await self._write(statement, {**fence, **_new_rows(inputs)}, agent_id, inputs)
        start = None
        if row is not None:
            system = None
            # If nothing has changed since the caller read the window, the statement waited for no
            # other change of it, and the system message in its result is the present one.
            if held is not None and not clear and held.revision == row.revision - bool(inputs):
                system = to_prefixed_message(row, _SYSTEM)
            start = await self._started(row, inputs, held, system)
        if start is not None:
            return start
        # The run began before, or messages of the window were deleted since it began.
        async with self._database.transaction() as connection:
            return await self._resume(connection, fence, held)

    async def commit_step(self, step: Step) -> CommittedStep:
        """Stores a step and adds it to the window."""
        project = current_project()
        system = None
        if step.system_text is not None:
            system = json.dumps([{"type": "text", "text": step.system_text}], ensure_ascii=False)
        values = {
            "project": project,
            "conversation": step.conversation_id,
            "agent": step.agent_id,
            "run": step.run_id,
            "attempt": step.attempt,
            "step": step.step,
            "stale": step.metadata_stale,
            "evicted": step.evict_count,
            "system": system,
            **_new_rows(step.messages),
        }
        row = await self._write(_COMMIT, values, step.agent_id, step.messages)
        if row is None:
            async with self._database.transaction(read_only=True) as connection:
                return await self._repeated_step(connection, project, step)
        messages = _placed(step.messages, step.conversation_id, step.agent_id, row.first_sequence)
        return CommittedStep(messages, row.revision, row.message_count)

    async def compact(self, compaction: Compaction) -> Window:
        """Stores a summary and replaces the window."""
        project = current_project()
        async with self._database.transaction() as connection:
            result = await connection.execute(
                _COMPACT,
                {
                    "project": project,
                    "conversation": compaction.conversation_id,
                    "run": compaction.run_id,
                    "attempt": compaction.attempt,
                    "expected": compaction.expected_revision,
                    "kept": list(compaction.kept_ids),
                    "first_id": str(_summary_part(compaction).get("first_message_id", "")),
                    "last_id": str(_summary_part(compaction).get("last_message_id", "")),
                    **_new_rows([compaction.summary]),
                },
            )
            if result.one_or_none() is None:
                await self._refuse_compaction(connection, project, compaction)
            return await self._read(connection, project, compaction.conversation_id)

    async def evict(self, conversation_id: str, agent_id: str, until_sequence: int) -> int:
        """Evicts archived messages from a window."""
        window = {"project": current_project(), "conversation": conversation_id}
        async with self._database.transaction() as connection:
            row = (await connection.execute(_LOCK_WINDOW, window)).one_or_none()
            if row is None:
                raise _missing(conversation_id)
            _check_agent(row, agent_id)
            messages = await self._by_id(connection, window["project"], row.message_ids)
            kept_ids = [message.id for message in remaining_messages(messages, until_sequence)]
            if len(kept_ids) < len(messages):
                await connection.execute(_EVICT, {**window, "ids": kept_ids})
            return len(messages) - len(kept_ids)

    async def delete_agent(self, agent_id: str) -> int:
        """Deletes all windows and messages of an agent."""
        project = current_project()
        values = {"project": project, "agent": agent_id, "count": _DELETED_AT_ONCE}
        total = 0
        while True:
            # The windows go with the first messages, so that none names a message that is missing.
            async with self._database.transaction() as connection:
                await connection.execute(_LOCK_DELETED, values)
                await connection.execute(_LOCK_WINDOWS, values)
                row = (await connection.execute(_DELETE, values)).one()
                await delete_unused_images(connection, project, row.images)
            count = int(row.message_count)
            total += count
            if count < _DELETED_AT_ONCE:
                return total

    async def _write(
        self,
        statement: SqlStatement,
        values: dict[str, Any],
        agent_id: str,
        messages: Sequence[Message],
    ) -> Row | None:
        """Writes new messages and their window, with the images of the messages.

        Returns:
            The row of the statement; None if its guard refused the write.
        """
        if not any(message.images for message in messages):
            return (await self._database.execute(statement, values)).one_or_none()
        async with self._database.transaction() as connection:
            row = (await connection.execute(statement, values)).one_or_none()
            if row is not None:
                await store_images(connection, values["project"], agent_id, messages)
            return row

    async def _started(
        self,
        row: Row,
        inputs: Sequence[Message],
        held: HeldWindow | None,
        system: Message | None,
    ) -> TurnStart | None:
        """Returns the turn that has begun; None if messages were deleted since.

        The window is not locked meanwhile. Stored messages do not change, and to the caller a
        change of the window during this call looks like a change right after it.

        Args:
            row: The window.
            inputs: The inputs of the turn.
            held: The part of the window that the caller holds.
            system: The system message; None to read it.
        """
        first = row.message_count - len(inputs)
        messages = _placed(inputs, row.conversation_id, row.agent_id, first)
        earlier_ids = row.message_ids[: -len(inputs) or None]
        unchanged = _unchanged(row, earlier_ids, held)
        shown_ids = _without(earlier_ids, unchanged)
        by_id = {} if system is None else {system.id: system}
        if missing := [message_id for message_id in shown_ids if message_id not in by_id]:
            rows = await self._database.query(BY_ID, ids=missing)
            by_id |= {message.id: to_message(message) for message in rows}
        if not by_id.keys() >= set(shown_ids):
            return None
        earlier = [by_id[message_id] for message_id in shown_ids]
        return TurnStart(
            window=_window(row, [*earlier, *messages]), inputs=messages, unchanged_count=unchanged
        )

    async def _resume(
        self, connection: DatabaseConnection, fence: dict[str, Any], held: HeldWindow | None
    ) -> TurnStart:
        rows = await connection.execute(_TAKE_OVER, fence)
        row = rows.one_or_none()
        if row is None:
            row = await self._row(connection, fence["project"], fence["conversation"])
            _check_agent(row, fence["agent"])
            raise _stale(fence["run"], fence["attempt"], row)
        of_run = await connection.execute(
            BY_RUN,
            {
                "project": fence["project"],
                "run": fence["run"],
                "conversation": fence["conversation"],
            },
        )
        messages = [to_message(item) for item in of_run]
        unchanged = _unchanged(row, row.message_ids, held)
        shown_ids = _without(row.message_ids, unchanged)
        window = await self._by_id(connection, fence["project"], shown_ids)
        return TurnStart(
            window=_window(row, window),
            unchanged_count=unchanged,
            # Summaries of the run have step 0 too.
            inputs=tuple(
                message
                for message in messages
                if message.step == 0 and message.role is not MessageRole.SUMMARY
            ),
            committed_steps=row.committed_steps,
            committed=tuple(message for message in messages if message.step > 0),
        )

    async def _repeated_step(
        self, connection: DatabaseConnection, project: str, step: Step
    ) -> CommittedStep:
        row = await self._row(connection, project, step.conversation_id)
        _check_agent(row, step.agent_id)
        mine = row.active_run_id == step.run_id and row.attempt == step.attempt
        if not mine or row.committed_steps < step.step:
            raise _stale(step.run_id, step.attempt, row)
        of_run = await connection.execute(
            BY_RUN,
            {"project": project, "run": step.run_id, "conversation": step.conversation_id},
        )
        messages = [to_message(item) for item in of_run]
        return CommittedStep(
            tuple(message for message in messages if message.step == step.step),
            row.revision,
            row.message_count,
        )

    async def _refuse_compaction(
        self, connection: DatabaseConnection, project: str, compaction: Compaction
    ) -> None:
        row = await self._row(connection, project, compaction.conversation_id)
        if compaction.summary.id in row.message_ids:
            return
        if compaction.run_id and (row.active_run_id, row.attempt) != (
            compaction.run_id,
            compaction.attempt,
        ):
            raise _stale(compaction.run_id, compaction.attempt, row)
        if compaction.expected_revision == row.revision:
            problem = "must be messages of the window, all pinned ones among them"
            raise InvalidArgumentError(
                f"kept_message_ids {problem}.",
                violations=[FieldViolation("kept_message_ids", problem)],
            )
        raise AbortedError(
            "The window has changed since the compaction was planned.",
            reason=Reason.REVISION_MISMATCH,
            metadata={"expected": compaction.expected_revision, "current": row.revision},
        )

    async def _row(self, connection: DatabaseConnection, project: str, conversation_id: str) -> Row:
        result = await connection.execute(
            _WINDOW, {"project": project, "conversation": conversation_id}
        )
        row = result.one_or_none()
        if row is None:
            raise _missing(conversation_id)
        return row

    async def _read(
        self, connection: DatabaseConnection, project: str, conversation_id: str
    ) -> Window:
        row = await self._row(connection, project, conversation_id)
        return _window(row, await self._by_id(connection, project, row.message_ids))

    async def _by_id(
        self, connection: DatabaseConnection, project: str, ids: Sequence[str]
    ) -> list[Message]:
        rows = await connection.execute(BY_ID, {"project": project, "ids": list(ids)})
        by_id = {row.id: to_message(row) for row in rows}
        return [by_id[message_id] for message_id in ids]


def _new_rows(messages: Sequence[Message]) -> dict[str, Any]:
    return {
        "ids": [message.id for message in messages],
        "count": len(messages),
        "records": to_records(messages),
    }


def _summary_part(compaction: Compaction) -> Part:
    parts = [part for part in compaction.summary.parts if part["type"] == "summary"]
    return parts[0] if parts else {}


def _placed(
    messages: Sequence[Message], conversation_id: str, agent_id: str, first: int
) -> tuple[Message, ...]:
    return tuple(
        message.placed(conversation_id, agent_id, first + index)
        for index, message in enumerate(messages)
    )


def _window(row: Row, messages: Sequence[Message]) -> Window:
    return Window(
        conversation_id=row.conversation_id,
        agent_id=row.agent_id,
        revision=row.revision,
        messages=tuple(messages),
        message_count=row.message_count,
        metadata_stale=row.metadata_stale,
    )


def _unchanged(row: Row, ids: Sequence[str], held: HeldWindow | None) -> int:
    """Returns how many messages after the system message a caller holds unchanged.

    Args:
        row: The window.
        ids: Its messages, without new inputs.
        held: The part of the window that the caller holds.
    """
    if held is None or not row.rewrite_revision <= held.revision <= row.revision:
        return 0
    count = held.message_count
    if not 0 < count <= len(ids) or ids[count - 1] != held.last_message_id:
        return 0
    return count - 1


def _without(ids: Sequence[str], unchanged: int) -> Sequence[str]:
    # The text of the system message can change.
    return [*ids[:1], *ids[1 + unchanged :]]


def _check_agent(row: Row, agent_id: str) -> None:
    if row.agent_id != agent_id:
        raise _missing(row.conversation_id)


def _missing(conversation_id: str) -> NotFoundError:
    return NotFoundError(
        f"Conversation {conversation_id} has no window.",
        reason=Reason.WINDOW_NOT_FOUND,
        metadata={"id": conversation_id},
    )


def _deleted(agent_id: str) -> NotFoundError:
    return NotFoundError(
        f"Agent {agent_id} was deleted.", reason=Reason.AGENT_NOT_FOUND, metadata={"id": agent_id}
    )


def _stale(run_id: str, attempt: int, row: Row) -> AbortedError:
    return AbortedError(
        f"Attempt {attempt} of {run_id} no longer has the window.",
        reason=Reason.STALE_ATTEMPT,
        metadata={
            "run_id": run_id,
            "attempt": attempt,
            "current_run_id": row.active_run_id,
            "current_attempt": row.attempt,
        },
    )
