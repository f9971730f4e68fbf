"""Stores runs in PostgreSQL; implements `domain.RunStore`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from strata.gateway.runs.domain.approvals import (
    OnApproval,
    approval_pending,
    not_open,
)
from strata.gateway.runs.domain.quotas import MAX_RUNS_OF_GROUP_RUN, check_group_quota
from strata.gateway.runs.domain.runs import (
    Accepted,
    Dispatch,
    EventPage,
    Fence,
    LeaseLostError,
    NewRun,
    OnBusy,
    Run,
    RunEnding,
    RunFilter,
    RunMark,
    StoredEvent,
)
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.store import statements as sql
from strata.gateway.runs.store.approvals import PostgresApprovals
from strata.gateway.runs.store.base import run_not_found
from strata.gateway.runs.store.chains import PostgresChains
from strata.gateway.runs.store.claims import PostgresClaims
from strata.gateway.runs.store.memory_agents import PostgresMemoryRuns, note_end, note_turn
from strata.gateway.runs.store.rows import dispatch_of, run_of
from strata.gateway.runs.store.usage import PostgresUsage
from strata.protocol.errors import (
    AbortedError,
    Reason,
    UnavailableError,
)
from strata.shared.db import PAGE_BYTES, DatabaseConnection, Row, SqlStatement
from strata.shared.idempotency.keys import check_same_request
from strata.shared.json_text import storable_text

_ACCEPT_ATTEMPTS = 10
# Projects with queued runs that one claim statement searches, and claim statements of one call.
_CLAIM_PROJECTS = 64
_CLAIM_STATEMENTS = 8
_ANY_NUMBER = 2**31 - 1
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class PostgresRunStore(
    PostgresApprovals, PostgresChains, PostgresClaims, PostgresMemoryRuns, PostgresUsage
):
    """Stores the runs of all projects."""

    async def accept(self, new: NewRun, *, may_start: bool = True) -> Accepted:
        """See `RunStore.accept`."""
        principal = new.principal
        for attempt in range(_ACCEPT_ATTEMPTS):
            statement, values = self._offer(new, may_start=may_start)
            result = await self._database.execute(
                statement, values, project_id=principal.project_id
            )
            row = result.one()
            accepted = self._accepted(new, row)
            if accepted is not None:
                return accepted
            is_open = row["pending_id"] == new.approval_id
            # A concurrent repetition of this request may have answered the approval.
            may_be_repeated = bool(new.request_id) and attempt == 0
            if new.on_approval is OnApproval.ANSWER and not (is_open or may_be_repeated):
                raise not_open(await self.approval(principal.project_id, new.approval_id))
            # Another run of the conversation or with the request_id was committed at the same
            # time: the next statement reads it.
        raise UnavailableError("The conversation is too busy to take the message.", retry_after=0.1)

    async def accept_within(
        self, connection: DatabaseConnection, new: NewRun, *, may_start: bool
    ) -> Accepted | None:
        """Stores a run within the transaction of the caller, who commits it; see `accept`.

        Returns:
            None if another run of the conversation was committed at the same time: try again in
            another transaction.
        """
        result = await connection.execute(*self._offer(new, may_start=may_start))
        return self._accepted(new, result.one())

    def _offer(self, new: NewRun, *, may_start: bool) -> tuple[SqlStatement, dict[str, Any]]:
        """Returns the statement that stores a run, and its values."""
        terms = self._terms
        principal = new.principal
        values: dict[str, Any] = {
            "project_id": principal.project_id,
            "organization_id": principal.organization_id,
            "principal": principal.name,
            "scopes": sorted(principal.scopes),
            "id": new.id,
            "agent_id": new.agent_id,
            "conversation_id": new.conversation_id,
            "kind": new.kind.value,
            "request_id": new.request_id,
            "payload": new.payload,
            "payload_hash": new.payload_hash,
            "max_steps": new.max_steps,
            "on_busy": new.on_busy.value,
            "on_approval": new.on_approval.value,
            "approval_id": new.approval_id,
            "parent_run_id": new.parent_run_id or None,
            **terms.parameters(),
            "may_start": may_start,
            "run_at": new.run_at,
            "group_run_id": new.group_run_id,
            "takes_slot": new.takes_slot,
        }
        if new.group_run_id:
            statement, values["group_limit"] = sql.ACCEPT_IN_GROUP, MAX_RUNS_OF_GROUP_RUN
        else:
            statement, quotas = sql.ACCEPT, terms.quotas
            values |= {"open_limit": quotas.open_runs, "delayed_limit": quotas.delayed_runs}
        return statement, values

    def _accepted(self, new: NewRun, row: Row) -> Accepted | None:
        if row["id"] is None:
            if new.group_run_id:
                check_group_quota(row["quota_count"])
            elif new.on_approval is not OnApproval.ANSWER:
                self._terms.quotas.check(row["quota_count"], is_later=row["is_later"])
            if row["busy_id"] is not None and new.on_busy is OnBusy.REJECT:
                raise AbortedError(
                    "The conversation has an active run.",
                    reason=Reason.CONVERSATION_BUSY,
                    metadata={"active_run_id": row["busy_id"]},
                )
            if row["pending_id"] is not None and new.on_approval is OnApproval.REJECT:
                raise approval_pending(row["pending_id"], row["pending_until"])
            return None
        run = run_of(row)
        if not row["is_new"]:
            check_same_request(new.request_id or "", bytes(row["payload_hash"]), new.payload_hash)
            return Accepted(run, None)
        dispatch = dispatch_of(row) if run.state is RunState.RUNNING else None
        return Accepted(run, dispatch, row["interrupted_id"])

    async def get(self, project_id: str, run_id: str) -> Run:
        """See `RunStore.get`."""
        values = {"project_id": project_id, "run_id": run_id}
        return _run_or_not_found((await self._read(sql.GET, values)).one_or_none(), run_id)

    async def find_request(self, project_id: str, request_id: str) -> Run | None:
        """See `RunStore.find_request`."""
        values = {"project_id": project_id, "request_id": request_id}
        row = (await self._read(sql.FIND_REQUEST, values)).one_or_none()
        return None if row is None else run_of(row)

    async def delayed_of_principal(self, project_id: str, principal: str) -> Sequence[str]:
        """See `RunStore.delayed_of_principal`."""
        values = {"project_id": project_id, "principal": principal}
        return (await self._read(sql.DELAYED_OF_PRINCIPAL, values)).scalars()

    async def list(
        self, project_id: str, which: RunFilter, *, before: str | None, limit: int
    ) -> Sequence[Run]:
        """See `RunStore.list`."""
        conditions: dict[str, object] = {
            "agent_id": which.agent_id,
            "conversation_id": which.conversation_id,
            "before": before,
        }
        filters = {name: value for name, value in conditions.items() if value}
        values = {**filters, "project_id": project_id, "limit": limit}
        result = await self._read(sql.list_statement(filters, which.states), values)
        return [run_of(row) for row in result]

    async def events(self, project_id: str, run_id: str, after: int, limit: int = 200) -> EventPage:
        """See `RunStore.events`."""
        values = {
            "project_id": project_id,
            "run_id": run_id,
            "after": after,
            "limit": limit,
            "max_bytes": PAGE_BYTES,
        }
        result = await self._read(sql.EVENTS, values)
        rows = result.all()
        if not rows:
            raise run_not_found(run_id)
        events = [
            StoredEvent(row["sequence"], bytes(row["payload"]))
            for row in rows
            if row["sequence"] is not None
        ]
        return EventPage(_mark(run_id, rows[0]), events)

    async def marks(self, runs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, RunMark]]:
        """See `RunStore.marks`."""
        values = {"project_ids": [run[0] for run in runs], "run_ids": [run[1] for run in runs]}
        rows = await self._worker.system_query(sql.MARKS, values)
        return [(row.project_id, _mark(row.id, row)) for row in rows]

    async def load(self, project_id: str, run_id: str) -> Dispatch:
        """See `RunStore.load`."""
        values = {"project_id": project_id, "run_id": run_id, "owner": self._terms.owner}
        row = (await self._read(sql.LOAD, values)).one_or_none()
        if row is None:
            raise LeaseLostError(run_id)
        return dispatch_of(row)

    async def append(
        self, fence: Fence, events: Sequence[StoredEvent], *, progressed: bool = False
    ) -> None:
        """See `RunStore.append`."""
        values = {**_fence(fence), **_batch(events), "progressed": progressed}
        result = await self._database.execute(sql.APPEND, values, project_id=fence.project_id)
        if not result.scalar_one():
            raise LeaseLostError(fence.run_id)

    async def redispatch(self, fence: Fence) -> Fence:
        """See `RunStore.redispatch`."""
        values = {**_fence(fence), "lease_s": self._terms.lease_s}
        result = await self._database.execute(sql.REDISPATCH, values, project_id=fence.project_id)
        attempt = result.scalar_one_or_none()
        if attempt is None:
            raise LeaseLostError(fence.run_id)
        return Fence(fence.project_id, fence.run_id, attempt, fence.owner)

    async def finish(
        self, fence: Fence, ending: RunEnding, events: Sequence[StoredEvent], *, take_next: bool
    ) -> Dispatch | None:
        """See `RunStore.finish`."""
        failure = ending.failure
        # Text that PostgreSQL cannot store must not prevent the end of a run.
        message = storable_text(failure.message) if failure else None
        values = {
            **self._terms.parameters(),
            **_fence(fence),
            **_batch(events),
            "state": ending.state.value,
            "stop_reason": ending.stop_reason.name,
            "error_reason": failure.reason if failure else None,
            "error_message": message,
            "error_retryable": failure.retryable if failure else None,
            "step_count": ending.step_count,
            **ending.usage.to_json(),
            "taint": list(ending.taint),
            "approval_id": ending.asked.id if ending.asked else None,
            "approval_request": ending.asked.request if ending.asked else None,
            "approval_s": ending.asked.remaining_s if ending.asked else None,
            "approval_default": ending.asked is not None and ending.asked.default_approve,
            "reopened_id": ending.reopens or None,
            "take_next": take_next,
        }
        statement = sql.FINISH_WAITING if ending.asked or ending.reopens else sql.FINISH
        if ending.tended is None and not ending.reads_transcript:
            result = await self._database.execute(statement, values, project_id=fence.project_id)
            return _following(fence, result.one())
        async with self._database.transaction(project_id=fence.project_id) as connection:
            row = (await connection.execute(statement, values)).one()
            following = _following(fence, row)
            if ending.tended is not None:
                ended = fence.run_id, row["ended_agent_id"], row["ended_conversation_id"]
                await note_turn(connection, fence.project_id, ended, ending.tended)
            if ending.reads_transcript:
                failed = (failure.reason, message or "") if failure else ("", "")
                await note_end(
                    connection, fence.project_id, fence.run_id, ending.state, failed, ending.read
                )
        return following

    async def cancel(self, project_id: str, run_id: str, finished: bytes) -> Run:
        """See `RunStore.cancel`."""
        values = {"project_id": project_id, "run_id": run_id, "finished": finished}
        async with self._database.transaction(project_id=project_id) as connection:
            await connection.execute(sql.CANCEL, values)
            result = await connection.execute(sql.GET, values)
            return _run_or_not_found(result.one_or_none(), run_id)


def _mark(run_id: str, row: Row) -> RunMark:
    state = RunState(row["state"])
    return RunMark(run_id, state, row["last_sequence"], row["owner_address"])


def _following(fence: Fence, row: Row) -> Dispatch | None:
    """Returns the run that `FINISH` has started.

    Raises:
        LeaseLostError: It has ended nothing, because another holder has the run.
    """
    if not row["held"]:
        raise LeaseLostError(fence.run_id)
    return dispatch_of(row) if row["id"] is not None else None


def _run_or_not_found(row: Row | None, run_id: str) -> Run:
    if row is None:
        raise run_not_found(run_id)
    return run_of(row)


def _fence(fence: Fence) -> dict[str, object]:
    return {
        "project_id": fence.project_id,
        "run_id": fence.run_id,
        "attempt": fence.attempt,
        "owner": fence.owner,
    }


def _batch(events: Sequence[StoredEvent]) -> dict[str, object]:
    return {
        "sequences": [event.sequence for event in events],
        "payloads": [event.payload for event in events],
        "last_sequence": events[-1].sequence,
    }
