"""Stores runs in PostgreSQL; implements `domain.RunStore`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import TextualSelect
from sqlalchemy.exc import IntegrityError

from strata.gateway.runs.domain.approvals import (
    Approval,
    ApprovalFilter,
    DueApproval,
    OnApproval,
    approval_pending,
    not_open,
)
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.quotas import MAX_RUNS_OF_GROUP_RUN, RunQuotas, check_group_quota
from strata.gateway.runs.domain.runs import (
    Accepted,
    Dispatch,
    EventPage,
    Fence,
    LeaseLostError,
    NewRun,
    OnBusy,
    RenewedLease,
    Run,
    RunEnding,
    RunFailure,
    RunFilter,
    RunKind,
    RunMark,
    StoredEvent,
    UsageSum,
)
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.domain.timing import LEASE_S
from strata.gateway.runs.store import statements as sql
from strata.gateway.runs.store.chains import PostgresChains, run_not_found
from strata.gateway.runs.store.memory_agents import PostgresMemoryRuns, note_end, note_turn
from strata.protocol.errors import (
    AbortedError,
    NotFoundError,
    Reason,
    UnavailableError,
)
from strata.shared.db import PAGE_BYTES, Database
from strata.shared.db.async_engine import AsyncConnection
from strata.shared.idempotency.keys import check_same_request
from strata.shared.json_text import storable_text
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import COUNTS, Usage

_ACCEPT_ATTEMPTS = 10
# Projects with queued runs that one claim statement searches, and claim statements of one call.
_CLAIM_PROJECTS = 64
_CLAIM_STATEMENTS = 8
_ANY_NUMBER = 2**31 - 1
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Terms of the leases that this gateway holds on runs; times in seconds.

    Attributes:
        owner: ID of this gateway process; unique for each start.
        lease_s: Time after which a lease that is not renewed expires.
        run_s: Time limit of a run, counted from its first dispatch.
        quotas: Limits of the runs of one project.
        address: Address of this gateway for other gateways; empty if they cannot reach it.
    """

    owner: str
    lease_s: float = LEASE_S
    run_s: float = 840.0
    quotas: RunQuotas = field(default_factory=RunQuotas)
    address: str = ""


class PostgresRunStore(PostgresChains, PostgresMemoryRuns):
    """Stores the runs of all projects.

    Args:
        database: Connections with the service role; each transaction is limited to one project.
        worker: Connections with the worker role, for leases of the runs of all projects.
        terms: Terms of the leases of this gateway.
    """

    def __init__(self, database: Database, worker: Database, terms: LeaseTerms) -> None:
        PostgresChains.__init__(self, database)
        holder = {
            "owner": terms.owner,
            "address": terms.address,
            "lease_s": terms.lease_s,
            "run_s": terms.run_s,
        }
        PostgresMemoryRuns.__init__(self, database, worker, holder)
        self._worker = worker
        self._terms = terms
        # The next claim begins with the project after this one.
        self._after = ""

    async def accept(self, new: NewRun, *, may_start: bool = True) -> Accepted:
        """See `RunStore.accept`."""
        principal = new.principal
        for attempt in range(_ACCEPT_ATTEMPTS):
            statement, values = self._offer(new, may_start=may_start)
            result = await self._database.execute(
                statement, values, project_id=principal.project_id
            )
            row = result.mappings().one()
            accepted = self._accepted(new, row)
            if accepted is not None:
                return accepted
            is_open = row["pending_id"] == new.approval_id
            # The answer that closed it meanwhile may be this request, sent twice at once.
            may_be_repeated = bool(new.request_id) and attempt == 0
            if new.on_approval is OnApproval.ANSWER and not (is_open or may_be_repeated):
                raise not_open(await self.approval(principal.project_id, new.approval_id))
            # Another run of the conversation or with the request_id was committed at the same
            # time: the next statement reads it.
        raise UnavailableError("The conversation is too busy to take the message.", retry_after=0.1)

    async def accept_within(
        self, connection: AsyncConnection, new: NewRun, *, may_start: bool
    ) -> Accepted | None:
        """Stores a run within the transaction of the caller, who commits it; see `accept`.

        Returns:
            None if another run of the conversation was committed at the same time: try again in
            another transaction.
        """
        result = await connection.execute(*self._offer(new, may_start=may_start))
        return self._accepted(new, result.mappings().one())

    def _offer(self, new: NewRun, *, may_start: bool) -> tuple[TextualSelect, dict[str, Any]]:
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
            "owner": terms.owner,
            "address": terms.address,
            "lease_s": terms.lease_s,
            "run_s": terms.run_s,
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

    def _accepted(self, new: NewRun, row: Mapping[Any, Any]) -> Accepted | None:
        if row["id"] is None:
            if new.group_run_id:
                check_group_quota(row["quota_count"])
            else:
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
        run = _run(row)
        if not row["is_new"]:
            check_same_request(new.request_id or "", bytes(row["payload_hash"]), new.payload_hash)
            return Accepted(run, None)
        dispatch = _dispatch(row) if run.state is RunState.RUNNING else None
        return Accepted(run, dispatch, row["interrupted_id"])

    async def get(self, project_id: str, run_id: str) -> Run:
        """See `RunStore.get`."""
        values = {"project_id": project_id, "run_id": run_id}
        return _run_or_not_found(
            (await self._read(sql.GET, values)).mappings().one_or_none(), run_id
        )

    async def find_request(self, project_id: str, request_id: str) -> Run | None:
        """See `RunStore.find_request`."""
        values = {"project_id": project_id, "request_id": request_id}
        row = (await self._read(sql.FIND_REQUEST, values)).mappings().one_or_none()
        return None if row is None else _run(row)

    async def delayed_of_principal(self, project_id: str, principal: str) -> Sequence[str]:
        """See `RunStore.delayed_of_principal`."""
        values = {"project_id": project_id, "principal": principal}
        return (await self._read(sql.DELAYED_OF_PRINCIPAL, values)).scalars().all()

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
        return [_run(row) for row in result.mappings()]

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
        rows = result.mappings().all()
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
        return [(row.project_id, _mark(row.id, row._asdict())) for row in rows]

    async def load(self, project_id: str, run_id: str) -> Dispatch:
        """See `RunStore.load`."""
        values = {"project_id": project_id, "run_id": run_id, "owner": self._terms.owner}
        row = (await self._read(sql.LOAD, values)).mappings().one_or_none()
        if row is None:
            raise LeaseLostError(run_id)
        return _dispatch(row)

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
        # A run must be able to end, whatever text its failure has.
        message = storable_text(failure.message) if failure else None
        values = {
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
            "address": self._terms.address,
            "lease_s": self._terms.lease_s,
            "run_s": self._terms.run_s,
        }
        statement = sql.FINISH_WAITING if ending.asked or ending.reopens else sql.FINISH
        if ending.tended is None and not ending.reads_transcript:
            result = await self._database.execute(statement, values, project_id=fence.project_id)
            return _following(fence, result.mappings().one())
        async with self._database.transaction(project_id=fence.project_id) as connection:
            row = (await connection.execute(statement, values)).mappings().one()
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
            return _run_or_not_found(result.mappings().one_or_none(), run_id)

    async def close_approvals(self, project_id: str, agent_id: str) -> None:
        """See `ApprovalStore.close_approvals`."""
        values = {"project_id": project_id, "agent_id": agent_id}
        await self._database.execute(sql.CLOSE_APPROVALS, values, project_id=project_id)

    async def approval(self, project_id: str, approval_id: str) -> Approval:
        """See `RunStore.approval`."""
        values = {"project_id": project_id, "id": approval_id}
        row = (await self._read(sql.APPROVAL, values)).mappings().one_or_none()
        if row is None:
            raise NotFoundError(
                f"There is no approval {approval_id}.",
                reason=Reason.APPROVAL_NOT_FOUND,
                metadata={"id": approval_id},
            )
        return _approval(row)

    async def approvals(
        self, project_id: str, which: ApprovalFilter, *, after: str | None, limit: int
    ) -> Sequence[Approval]:
        """See `RunStore.approvals`."""
        conditions: dict[str, object] = {
            "agent_id": which.agent_id,
            "pending": not which.include_decided,
            "after": after,
        }
        filters = {name: value for name, value in conditions.items() if value}
        values = {**filters, "project_id": project_id, "limit": limit}
        values.pop("pending", None)
        result = await self._read(sql.approvals_statement(filters), values)
        return [_approval(row) for row in result.mappings()]

    async def asked_by(self, project_id: str, run_id: str) -> tuple[Principal, int]:
        """See `RunStore.asked_by`."""
        values = {"project_id": project_id, "run_id": run_id}
        row = (await self._read(sql.ASKED_BY, values)).mappings().one_or_none()
        if row is None:
            raise run_not_found(run_id)
        return _principal(row), row["max_steps"]

    async def due_approvals(
        self, after: DueApproval | None, limit: int, *, without_projects: Iterable[str] = ()
    ) -> Sequence[DueApproval]:
        """See `RunStore.due_approvals`."""
        values = {
            "without_projects": list(without_projects),
            "after_time": after.expire_time if after else _LONG_AGO,
            "after_id": after.id if after else "",
            "limit": limit,
        }
        rows = await self._worker.system_query(sql.DUE, values)
        return [DueApproval(row.project_id, row.id, row.expire_time) for row in rows]

    async def usage(
        self, project_id: str, start: datetime, end: datetime, agent_id: str
    ) -> UsageSum:
        """See `RunStore.usage`."""
        values = {"project_id": project_id, "start": start, "end": end, "agent_id": agent_id}
        return _usage_sum((await self._read(sql.USAGE, values)).mappings().one())

    async def usage_series(
        self, project_id: str, starts: Sequence[datetime], end: datetime, agent_id: str
    ) -> Sequence[UsageSum]:
        """See `RunStore.usage_series`."""
        values = {
            "project_id": project_id,
            "start": starts[0],
            "starts": list(starts),
            "end": end,
            "agent_id": agent_id,
        }
        rows = (await self._read(sql.USAGE_SERIES, values)).mappings().all()
        sums = {row["part"]: _usage_sum(row) for row in rows}
        return [sums.get(number, UsageSum()) for number in range(1, len(starts) + 1)]

    async def usage_of_projects(
        self, project_ids: Sequence[str], start: datetime, end: datetime
    ) -> Mapping[str, UsageSum]:
        """See `RunStore.usage_of_projects`."""
        values = {"project_ids": list(project_ids), "start": start, "end": end}
        rows = await self._worker.system_query(sql.USAGE_OF_PROJECTS, values)
        return {row.project_id: _usage_sum(row._asdict()) for row in rows}

    async def renew(self, run_ids: Sequence[str]) -> Sequence[RenewedLease]:
        """See `RunStore.renew`."""
        terms = self._terms
        values = {
            "owner": terms.owner,
            "lease_s": terms.lease_s,
            "run_ids": list(run_ids),
        }
        return [
            RenewedLease(row.id, row.attempt, row.state == RunState.CANCELLING)
            for row in await self._worker.system_execute(sql.RENEW, values)
        ]

    async def claim(
        self, limit: int, *, held: Mapping[str, int] | None = None, most: int | None = None
    ) -> Sequence[tuple[str, str]]:
        """See `RunStore.claim`."""
        terms = self._terms
        counts = Counter(held or {})
        claimed: list[tuple[str, str]] = []
        if not (await self._worker.system_query(sql.ANY_TO_CLAIM))[0][0]:
            return claimed
        # If no run of the searched projects can start, the next statement searches the projects
        # after them.
        for _ in range(_CLAIM_STATEMENTS):
            before = self._after
            values = {
                "owner": terms.owner,
                "address": terms.address,
                "lease_s": terms.lease_s,
                "run_s": terms.run_s,
                "limit": limit - len(claimed),
                "held_projects": list(counts),
                "held_counts": list(counts.values()),
                "most": _ANY_NUMBER if most is None else most,
                "after": before,
                "projects": _CLAIM_PROJECTS,
            }
            try:
                result = await self._worker.system_execute(sql.CLAIM, values)
            except IntegrityError:
                # A new run of a conversation started at the same time; the next poll reads it.
                return claimed
            rows = result.mappings().all()
            taken = [(row["project_id"], row["id"]) for row in rows if row["taken"]]
            claimed += taken
            counts.update(project_id for project_id, _ in taken)
            self._after = _next_turn(rows, before, limit=values["limit"])
            if len(claimed) >= limit or not (self._after or before):
                break
        return claimed

    async def release(self) -> int:
        """See `RunStore.release`."""
        values = {"owner": self._terms.owner}
        return len((await self._worker.system_execute(sql.RELEASE, values)).all())

    async def release_others(self) -> int:
        """See `RunStore.release_others`."""
        values = {"owner": self._terms.owner}
        return len((await self._worker.system_execute(sql.RELEASE_OTHERS, values)).all())


def _next_turn(rows: Sequence[Mapping[Any, Any]], before: str, *, limit: object) -> str:
    """Returns the project after which the next claim begins; empty to begin with the first."""
    chosen = [row for row in rows if row["id"] is not None]
    if len(chosen) == limit:
        queued = [row for row in chosen if row["queued"]]
        if not queued:
            return before
        if queued[-1]["round"] == 1:
            return str(queued[-1]["project_id"])
    # A run was taken from each searched project that has one which may start.
    first = rows[0]
    return str(first["last_project"]) if first["projects"] == _CLAIM_PROJECTS else ""


def _mark(run_id: str, row: Mapping[Any, Any]) -> RunMark:
    state = RunState(row["state"])
    return RunMark(run_id, state, row["last_sequence"], row["owner_address"])


def _following(fence: Fence, row: Mapping[Any, Any]) -> Dispatch | None:
    """Returns the run that `FINISH` has started.

    Raises:
        LeaseLostError: It has ended nothing, because another holder has the run.
    """
    if not row["held"]:
        raise LeaseLostError(fence.run_id)
    return _dispatch(row) if row["id"] is not None else None


def _run_or_not_found(row: Mapping[Any, Any] | None, run_id: str) -> Run:
    if row is None:
        raise run_not_found(run_id)
    return _run(row)


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


def _run(row: Mapping[Any, Any]) -> Run:
    failure = None
    if row["error_reason"] is not None:
        failure = RunFailure(row["error_reason"], row["error_message"], row["error_retryable"])
    return Run(
        project_id=row["project_id"],
        id=row["id"],
        agent_id=row["agent_id"],
        conversation_id=row["conversation_id"],
        kind=RunKind(row["kind"]),
        state=RunState(row["state"]),
        stop_reason=_stop_reason(row["stop_reason"]),
        failure=failure,
        usage=_usage(row),
        step_count=row["step_count"],
        attempt=row["attempt"],
        last_sequence=row["last_sequence"],
        request_id=row["request_id"] or "",
        create_time=row["create_time"],
        start_time=row["start_time"],
        finish_time=row["finish_time"],
        taint=tuple(row["taint"]),
        parent_run_id=row["parent_run_id"] or "",
        run_at=row["run_at"],
        takes_slot=row["takes_slot"],
    )


def _approval(row: Mapping[Any, Any]) -> Approval:
    return Approval(
        id=row["id"],
        agent_id=row["agent_id"],
        conversation_id=row["conversation_id"],
        run_id=row["run_id"],
        request=bytes(row["request"]),
        expire_time=row["expire_time"],
        create_time=row["create_time"],
        decided=row["decided"],
        answer_run_id=row["answer_run_id"] or "",
    )


def _usage_sum(row: Mapping[Any, Any]) -> UsageSum:
    return UsageSum(int(row["run_count"]), int(row["step_count"]), _usage(row))


def _stop_reason(name: str) -> StopReason | None:
    # A gateway of a newer release may have stored a reason that this one lacks.
    return StopReason.__members__.get(name)


def _usage(row: Mapping[Any, Any]) -> Usage:
    # Sums are decimal numbers.
    counts = {name: int(row[name]) for name in COUNTS}
    return Usage(**counts, estimated=row["usage_estimated"])


def _principal(row: Mapping[Any, Any]) -> Principal:
    return Principal(
        row["organization_id"], row["project_id"], row["principal"], frozenset(row["scopes"])
    )


def _dispatch(row: Mapping[Any, Any]) -> Dispatch:
    return Dispatch(
        run=_run(row),
        principal=_principal(row),
        payload=bytes(row["payload"]),
        max_steps=row["max_steps"],
        remaining_s=float(row["remaining_s"]),
        age_s=float(row["age_s"]),
        lost_holders=row["lost_holders"],
    )
