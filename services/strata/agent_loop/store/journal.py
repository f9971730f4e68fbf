"""The step journal in PostgreSQL, with the results of tool calls.

The journal row of a run is its fence: each write carries its attempt, and succeeds only while no
later dispatch has taken the row. PostgreSQL repeats the check after waiting for the row lock, so
that exactly one of an abandoned dispatch and its successor can write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import asyncpg

from strata.agent_loop.domain.model.chat import ToolCall
from strata.agent_loop.domain.run.journal import (
    CallState,
    JournalKey,
    NestedRecord,
    StepRecord,
    reply_from_json,
    reply_to_json,
    result_from_json,
    result_to_json,
    rules_from_json,
    snapshot_from_json,
    state_of,
)
from strata.agent_loop.domain.tools import ToolResult
from strata.agent_loop.store.agents import agent_not_found
from strata.protocol.errors import AbortedError, Reason
from strata.shared.context import current_project
from strata.shared.db import Database, sql
from strata.shared.tool_catalogue import ToolEffect

_OPEN = sql(
    """
    WITH fence AS (
        INSERT INTO agent_loop.journal (
            project_id, run_id, agent_id, conversation_id, attempt, step, step_id, message_id,
            model, reply, reply_attempt)
        VALUES (:project, :run, :agent, :conversation, CAST(:attempt AS integer),
                CAST(:step AS integer), :step_id, :message_id, :model, CAST(:reply AS json),
                CAST(:attempt AS integer))
        ON CONFLICT (project_id, run_id) DO UPDATE SET
            attempt = excluded.attempt, step = excluded.step, step_id = excluded.step_id,
            message_id = excluded.message_id, model = excluded.model, reply = excluded.reply,
            reply_attempt = excluded.attempt, update_time = now()
        WHERE agent_loop.journal.attempt <= excluded.attempt
        RETURNING run_id
    ), new_calls AS (
        INSERT INTO agent_loop.tool_calls (
            project_id, run_id, step, attempt, tool_call_id, position, name, effect, state)
        SELECT :project, fence.run_id, CAST(:step AS integer), CAST(:attempt AS integer),
               c.id, c.position, c.name, c.effect, :pending
        FROM fence, json_to_recordset(CAST(:calls AS json))
             AS c(id text, position integer, name text, effect text)
        -- The answer to the same statement may have been lost.
        ON CONFLICT (project_id, run_id, step, attempt, tool_call_id) DO NOTHING
    )
    SELECT count(*) FROM fence
    """
)
_TAKE_OVER = sql(
    """
    INSERT INTO agent_loop.journal AS j (project_id, run_id, agent_id, conversation_id, attempt)
    VALUES (:project, :run, :agent, :conversation, CAST(:attempt AS integer))
    ON CONFLICT (project_id, run_id) DO UPDATE SET
        attempt = excluded.attempt, update_time = now(), finishing_until = NULL
    WHERE j.attempt <= excluded.attempt
    RETURNING step, step_id, message_id, model, reply, reply_attempt
    """
)
_FINISHING = sql(
    """
    INSERT INTO agent_loop.journal AS j (
        project_id, run_id, agent_id, conversation_id, attempt, finishing_until)
    VALUES (:project, :run, :agent, :conversation, CAST(:attempt AS integer),
            now() + make_interval(secs => :seconds))
    ON CONFLICT (project_id, run_id) DO UPDATE SET
        attempt = excluded.attempt, update_time = now(),
        finishing_until = excluded.finishing_until
    WHERE j.attempt <= excluded.attempt
    RETURNING run_id
    """
)
_IS_FINISHING = sql(
    """
    SELECT finishing_until > now() FROM agent_loop.journal
    WHERE project_id = :project AND run_id = :run AND attempt < :attempt
    """
)
# A separate statement after the fence is taken, so that it sees all earlier writes.
_CALLS = sql(
    """
    SELECT tool_call_id, name, effect, result, parent_id, arguments FROM agent_loop.tool_calls
    WHERE project_id = :project AND run_id = :run AND step = :step AND attempt = :attempt
    ORDER BY position
    """
)
_RECORD = sql(
    """
    WITH fence AS (
        SELECT run_id, reply_attempt FROM agent_loop.journal
        WHERE project_id = :project AND run_id = :run AND attempt = :attempt AND step = :step
        FOR NO KEY UPDATE
    ), ended_calls AS (
        UPDATE agent_loop.tool_calls t
        SET state = r.state, result = CAST(r.result AS json), update_time = now()
        FROM fence, unnest(
                 CAST(:ids AS text[]), CAST(:states AS text[]), CAST(:results AS text[])
             ) AS r(id, state, result)
        WHERE t.project_id = :project AND t.run_id = fence.run_id AND t.step = :step
          AND t.attempt = fence.reply_attempt AND t.tool_call_id = r.id
    )
    SELECT count(*) FROM fence
    """
)
_NEST = sql(
    """
    WITH fence AS (
        SELECT run_id, reply_attempt FROM agent_loop.journal
        WHERE project_id = :project AND run_id = :run AND attempt = :attempt AND step = :step
        FOR NO KEY UPDATE
    ), new_call AS (
        INSERT INTO agent_loop.tool_calls (
            project_id, run_id, step, attempt, tool_call_id, position, name, effect, state,
            parent_id, arguments)
        SELECT :project, fence.run_id, CAST(:step AS integer), fence.reply_attempt, :id,
               CAST(:position AS integer), :name, :effect, :pending, :parent, :arguments
        FROM fence
        ON CONFLICT (project_id, run_id, step, attempt, tool_call_id) DO NOTHING
    )
    SELECT count(*) FROM fence
    """
)

# No dispatch has such a number.
_FOR_GOOD = 2**31 - 1


class PostgresJournal:
    """Implements `domain.ports.Journal`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def resume(self, key: JournalKey, step: int | None) -> StepRecord | None:
        """Fences off earlier dispatches of the run; returns the step if it is journalled."""
        return await self._take_over(key, step)

    async def mark_finishing(self, key: JournalKey, seconds: float) -> None:
        """Marks that a dispatch without a caller is still finishing its step."""
        marked = await self._database.execute(_FINISHING, {**_fence(key), "seconds": seconds})
        if marked.one_or_none() is None:
            raise _stale(key)

    async def is_finishing(self, key: JournalKey) -> bool:
        """Returns whether an earlier dispatch of the run is still finishing its step."""
        rows = await self._database.query(_IS_FINISHING, run=key.run_id, attempt=key.attempt)
        return bool(rows and rows[0][0])

    async def close(self, key: JournalKey) -> StepRecord | None:
        """Fences off a finished run permanently; returns its last step if it is journalled."""
        return await self._take_over(replace(key, attempt=_FOR_GOOD), None)

    async def _take_over(self, key: JournalKey, step: int | None) -> StepRecord | None:
        async with self._database.transaction() as connection:
            with _existing_agent(key):
                row = (await connection.execute(_TAKE_OVER, _fence(key))).one_or_none()
            if row is None:
                raise _stale(key)
            step = row.step if step is None else step
            if row.step != step or row.reply is None:
                return None
            result = await connection.execute(
                _CALLS,
                {
                    "project": current_project(),
                    "run": key.run_id,
                    "step": step,
                    "attempt": row.reply_attempt,
                },
            )
            calls = result.all()
        reply = _read(row.reply)
        return StepRecord(
            step=step,
            step_id=row.step_id,
            message_id=row.message_id,
            model=row.model,
            reply=reply_from_json(reply),
            snapshot=snapshot_from_json(reply),
            rules=rules_from_json(reply),
            effects={
                call.tool_call_id: ToolEffect(call.effect) for call in calls if not call.parent_id
            },
            results={
                call.tool_call_id: result_from_json(_read(call.result))
                for call in calls
                if call.result is not None and not call.parent_id
            },
            nested=tuple(
                NestedRecord(
                    call.parent_id,
                    ToolCall(call.tool_call_id, call.name, call.arguments),
                    None if call.result is None else result_from_json(_read(call.result)),
                )
                for call in calls
                if call.parent_id
            ),
        )

    async def open_step(self, key: JournalKey, record: StepRecord) -> None:
        """Journals a reply and its calls, in one statement."""
        calls = [
            {
                "id": call.id,
                "position": position,
                "name": call.name,
                "effect": record.effects.get(call.id, ToolEffect.UNDECLARED).value,
            }
            for position, call in enumerate(record.reply.tool_calls)
        ]
        parameters = {
            **_fence(key),
            "step": record.step,
            "step_id": record.step_id,
            "message_id": record.message_id,
            "model": record.model,
            "reply": json.dumps(reply_to_json(record.reply, record.snapshot, record.rules)),
            "calls": json.dumps(calls),
            "pending": CallState.PENDING.value,
        }
        with _existing_agent(key):
            result = await self._database.execute(_OPEN, parameters)
        if not result.scalar_one():
            raise _stale(key)

    async def nest(
        self, key: JournalKey, step: int, record: NestedRecord, position: int, effect: ToolEffect
    ) -> None:
        """Journals a nested call of code, in one statement."""
        parameters = {
            "project": current_project(),
            "run": key.run_id,
            "attempt": key.attempt,
            "step": step,
            "id": record.call.id,
            "position": position,
            "name": record.call.name,
            "effect": effect.value,
            "pending": CallState.PENDING.value,
            "parent": record.parent_id,
            "arguments": record.call.arguments,
        }
        if not (await self._database.execute(_NEST, parameters)).scalar_one():
            raise _stale(key)

    async def record(self, key: JournalKey, step: int, results: Sequence[ToolResult]) -> None:
        """Journals results, in one statement."""
        # As arrays: PostgreSQL's functions on json refuse the NUL that a tool may have printed.
        parameters = {
            "project": current_project(),
            "run": key.run_id,
            "attempt": key.attempt,
            "step": step,
            "ids": [result.tool_return.tool_call_id for result in results],
            "states": [state_of(result).value for result in results],
            "results": [json.dumps(result_to_json(result)) for result in results],
        }
        if not (await self._database.execute(_RECORD, parameters)).scalar_one():
            raise _stale(key)


@contextmanager
def _existing_agent(key: JournalKey) -> Iterator[None]:
    """Raises AGENT_NOT_FOUND if a row cannot be written because the agent was deleted."""
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        if error.constraint_name == "journal_agent":
            raise agent_not_found(key.agent_id) from error
        raise


def _fence(key: JournalKey) -> dict[str, Any]:
    return {
        "project": current_project(),
        "run": key.run_id,
        "agent": key.agent_id,
        "conversation": key.conversation_id,
        "attempt": key.attempt,
    }


def _read(value: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return parsed


def _stale(key: JournalKey) -> AbortedError:
    return AbortedError(
        f"Attempt {key.attempt} of {key.run_id} has been taken over.",
        reason=Reason.STALE_ATTEMPT,
        metadata={"run_id": key.run_id, "attempt": key.attempt},
    )
