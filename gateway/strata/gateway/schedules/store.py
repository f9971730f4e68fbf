"""`domain.ScheduleStore` in PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

import asyncpg

from strata.gateway.runs.domain.approvals import OnApproval
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.runs import NewRun, RunKind
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.gateway.schedules.domain import (
    DueSchedule,
    NewSchedule,
    OnOverlap,
    RunPlan,
    Schedule,
    ScheduleState,
    ScheduleTerms,
    Tick,
    TickOutcome,
)
from strata.gateway.schedules.timing import Timing
from strata.protocol.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
    UnavailableError,
)
from strata.shared.db import Database, DatabaseConnection, Row, sql
from strata.shared.idempotency.keys import check_same_request
from strata.shared.ids import new_id
from strata.shared.waiting_work import any_row_sql

MAX_MISSED = 100
"""Maximum number of missed ticks to record after an outage; the newest ones are recorded."""
PREVIOUS_RUN_OPEN = "PREVIOUS_RUN_OPEN"

# If more schedules are due, the projects with the earliest ones are served in turn.
_MOST_COMPARED = 10_000
# Reasons of a failed run after which its schedule is disabled.
_DISABLING_REASONS = frozenset({Reason.AGENT_NOT_FOUND.value, Reason.CONVERSATION_NOT_FOUND.value})

_COLUMNS = """id, name, organization_id, project_id, principal, scopes, agent_id, conversation_id,
    payload, payload_hash, max_steps, on_approval, on_overlap, cron, time_zone, start_time, state,
    state_reason, next_time, last_run_id, last_time, create_time, update_time"""
_ONE = "project_id = :project_id AND id = :schedule_id"

_NOW = sql("SELECT now()")
# Serialises the creations of a project, so that each one sees the count of the others.
_LOCK = sql("SELECT pg_advisory_xact_lock(hashtextextended('schedules ' || :project_id, 0))")
_COUNT = sql("SELECT count(*) FROM gateway.schedules WHERE project_id = :project_id")
_KNOWN = sql(
    f"SELECT {_COLUMNS}, request_hash FROM gateway.schedules"
    " WHERE project_id = :project_id AND request_id = :request_id"
)
_INSERT = sql(f"""
INSERT INTO gateway.schedules (project_id, id, name, request_id, request_hash, organization_id,
    principal, scopes, agent_id, conversation_id, payload, payload_hash, max_steps, on_approval,
    on_overlap, cron, time_zone, start_time, state, next_time)
VALUES (:project_id, :schedule_id, :name, :request_id, :request_hash, :organization_id,
    :principal, :scopes, :agent_id, :conversation_id, :payload, :payload_hash, :max_steps,
    :on_approval, :on_overlap, :cron, :time_zone, :start_time, 'ACTIVE', :next_time)
RETURNING {_COLUMNS}
""")
_GET = sql(f"SELECT {_COLUMNS} FROM gateway.schedules WHERE {_ONE}")
_HOLD = sql(f"SELECT {_COLUMNS} FROM gateway.schedules WHERE {_ONE} FOR UPDATE")
_UPDATE = sql(f"""
UPDATE gateway.schedules
   SET name = :name, organization_id = :organization_id, principal = :principal,
       scopes = :scopes, payload = :payload, payload_hash = :payload_hash,
       max_steps = :max_steps, on_approval = :on_approval, on_overlap = :on_overlap,
       cron = :cron, time_zone = :time_zone, start_time = :start_time, state = :state,
       next_time = :next_time, update_time = now()
 WHERE {_ONE}
RETURNING {_COLUMNS}
""")
_SET_STATE = sql(f"""
UPDATE gateway.schedules
   SET state = :state, state_reason = :reason, next_time = NULL, update_time = now()
 WHERE {_ONE}
RETURNING {_COLUMNS}
""")
_RESUME = sql(f"""
UPDATE gateway.schedules
   SET state = 'ACTIVE', state_reason = '', next_time = CAST(:next_time AS timestamptz),
       organization_id = :organization_id, principal = :principal, scopes = :scopes,
       update_time = now()
 WHERE {_ONE}
RETURNING {_COLUMNS}
""")
_DELETE = sql(f"DELETE FROM gateway.schedules WHERE {_ONE} RETURNING id")
_DISABLE = sql("""
UPDATE gateway.schedules
   SET state = 'DISABLED', state_reason = :reason, next_time = NULL, update_time = now()
 WHERE project_id = :project_id AND agent_id = :agent_id AND state IN ('ACTIVE', 'PAUSED')
""")
_OF_PRINCIPAL = """project_id = :project_id AND principal = :principal AND state = 'ACTIVE'"""
_COUNT_OF_PRINCIPAL = sql(f"SELECT count(*) FROM gateway.schedules WHERE {_OF_PRINCIPAL}")
_PAUSE_OF_PRINCIPAL = sql(f"""
UPDATE gateway.schedules
   SET state = 'PAUSED', state_reason = :reason, next_time = NULL, update_time = now()
 WHERE {_OF_PRINCIPAL}
""")
_OF_SCHEDULE = "project_id = :project_id AND schedule_id = :schedule_id"
_TICK_PAGE = """
SELECT tick_time, outcome, run_id, reason, create_time FROM gateway.schedule_ticks
 WHERE {which}
 ORDER BY tick_time DESC LIMIT :limit
"""
_NEWEST_TICKS = sql(_TICK_PAGE.format(which=_OF_SCHEDULE))
# A statement of its own: with row security, an expression around the bound would not be compared in
# the index.
_OLDER_TICKS = sql(
    _TICK_PAGE.format(which=f"{_OF_SCHEDULE} AND tick_time < CAST(:before AS timestamptz)")
)
# By the worker, over all projects and few columns.
_IS_DUE = "state = 'ACTIVE' AND next_time <= now()"
ANY_SCHEDULE_DUE = any_row_sql("gateway.schedules", _IS_DUE, order="next_time")
"""SQL expression: whether a schedule is due."""
# An index with all schedules of each project would have to be searched for the few that are due.
_DUE = sql(f"""
WITH due AS (
    SELECT project_id, id, next_time FROM gateway.schedules
     WHERE {_IS_DUE} AND id <> ALL(CAST(:without AS text[]))
       AND project_id <> ALL(CAST(:without_projects AS text[]))
     ORDER BY next_time, id LIMIT {_MOST_COMPARED}
)
SELECT due.project_id, due.id
  FROM due
  LEFT JOIN unnest(CAST(:projects AS text[]), CAST(:counts AS bigint[])) AS started (project_id, n)
       ON started.project_id = due.project_id
 ORDER BY coalesce(started.n, 0)
          + row_number() OVER (PARTITION BY due.project_id ORDER BY due.next_time, due.id),
          due.next_time, due.id
 LIMIT :limit
""")
# Another gateway that acts on the schedule holds its row.
_TAKE = sql(f"""
SELECT {_COLUMNS}, now() AS now FROM gateway.schedules
 WHERE {_ONE} AND state = 'ACTIVE' AND next_time <= now()
   FOR UPDATE SKIP LOCKED
""")
_LAST_RUN = sql("""
SELECT state, error_reason, create_time FROM gateway.runs
 WHERE project_id = :project_id AND id = :run_id
""")
_SEEN = sql("""
SELECT tick_time FROM gateway.schedule_ticks
 WHERE project_id = :project_id AND schedule_id = :schedule_id AND tick_time >= :since
""")
_RECORD = sql("""
INSERT INTO gateway.schedule_ticks (project_id, schedule_id, tick_time, outcome, run_id, reason)
SELECT :project_id, :schedule_id, tick_time, outcome, run_id, reason
  FROM unnest(CAST(:tick_times AS timestamptz[]), CAST(:outcomes AS text[]),
              CAST(:run_ids AS text[]), CAST(:reasons AS text[]))
       AS ticks (tick_time, outcome, run_id, reason)
""")
_ADVANCE = sql(f"""
UPDATE gateway.schedules
   SET state = :state, next_time = CAST(:next_time AS timestamptz),
       last_run_id = CASE WHEN CAST(:run_id AS text) = '' THEN last_run_id ELSE :run_id END,
       last_time = CASE WHEN CAST(:run_id AS text) = '' THEN last_time ELSE :tick_time END
 WHERE {_ONE}
""")
_FORGET = sql("""
DELETE FROM gateway.schedule_ticks
 WHERE project_id = :project_id AND schedule_id = :schedule_id
   AND tick_time < now() - make_interval(secs => :kept_s)
   AND create_time < now() - make_interval(secs => :kept_s)
""")


class PostgresScheduleStore:
    """Store of schedules.

    Args:
        database: Connections with the service role; every transaction sets its project.
        worker: Connections with the worker role, for finding due schedules of all projects.
        runs: Stores the runs.
        terms: Limits.
    """

    def __init__(
        self, database: Database, worker: Database, runs: PostgresRunStore, terms: ScheduleTerms
    ) -> None:
        self._database = database
        self._worker = worker
        self._runs = runs
        self._terms = terms

    async def create(self, project_id: str, new: NewSchedule) -> Schedule:
        """See `ScheduleStore.create`."""
        digest = _digest(new)
        async with self._database.transaction(project_id=project_id) as connection:
            await connection.execute(_LOCK, {"project_id": project_id})
            if new.request_id is not None:
                request = {"project_id": project_id, "request_id": new.request_id}
                existing = (await connection.execute(_KNOWN, request)).one_or_none()
                if existing is not None:
                    check_same_request(new.request_id, bytes(existing["request_hash"]), digest)
                    return _schedule(existing)
            now = (await connection.execute(_NOW)).scalar_one()
            first = new.timing.check(now, min_interval=self._min_interval)
            count = (await connection.execute(_COUNT, {"project_id": project_id})).scalar_one()
            if count >= self._terms.per_project:
                raise ResourceExhaustedError(
                    f"The project has {count} schedules, which is the limit. Delete one that is "
                    "not needed.",
                    reason=Reason.QUOTA_EXCEEDED,
                    metadata={"quota": "schedules", "limit": self._terms.per_project},
                )
            values = {
                **_values(new.name, new.plan, new.timing),
                "project_id": project_id,
                "schedule_id": new.id,
                "request_id": new.request_id,
                "request_hash": digest,
                "agent_id": new.plan.agent_id,
                "conversation_id": new.plan.conversation_id,
                "next_time": first,
            }
            try:
                row = (await connection.execute(_INSERT, values)).one()
            except asyncpg.IntegrityConstraintViolationError as error:
                raise _name_taken(new.name) from error
        return _schedule(row)

    async def get(self, project_id: str, schedule_id: str) -> Schedule:
        """See `ScheduleStore.get`."""
        values = {"project_id": project_id, "schedule_id": schedule_id}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            row = (await connection.execute(_GET, values)).one_or_none()
        return _schedule_or_not_found(row, schedule_id)

    async def list(
        self, project_id: str, *, agent_id: str, name: str, before: str | None, limit: int
    ) -> Sequence[Schedule]:
        """See `ScheduleStore.list`."""
        filters: dict[str, object] = {"agent_id": agent_id, "name": name, "before": before}
        filters = {field: value for field, value in filters.items() if value}
        signs = {"agent_id": "agent_id =", "name": "name =", "before": "id <"}
        conditions = "".join(f" AND {signs[field]} :{field}" for field in filters)
        statement = sql(
            f"SELECT {_COLUMNS} FROM gateway.schedules"
            f" WHERE project_id = :project_id{conditions} ORDER BY id DESC LIMIT :limit"
        )
        values = {**filters, "project_id": project_id, "limit": limit}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = await connection.execute(statement, values)
            return [_schedule(row) for row in rows]

    async def update(
        self, project_id: str, schedule_id: str, *, name: str, plan: RunPlan, timing: Timing
    ) -> Schedule:
        """See `ScheduleStore.update`."""
        async with self._database.transaction(project_id=project_id) as connection:
            locked = await self._lock(connection, project_id, schedule_id)
            state, next_time = locked.state, locked.next_time
            if timing != locked.timing:
                now = (await connection.execute(_NOW)).scalar_one()
                first = timing.check(now, min_interval=self._min_interval)
                if state is ScheduleState.FINISHED:
                    state = ScheduleState.ACTIVE
                next_time = first if state is ScheduleState.ACTIVE else None
            values = {
                **_values(name, plan, timing),
                "project_id": project_id,
                "schedule_id": schedule_id,
                "state": state.value,
                "next_time": next_time,
            }
            try:
                row = (await connection.execute(_UPDATE, values)).one()
            except asyncpg.IntegrityConstraintViolationError as error:
                raise _name_taken(name) from error
        return _schedule(row)

    async def pause(self, project_id: str, schedule_id: str) -> Schedule:
        """See `ScheduleStore.pause`."""
        async with self._database.transaction(project_id=project_id) as connection:
            locked = await self._lock(connection, project_id, schedule_id)
            if locked.state is not ScheduleState.ACTIVE:
                return locked
            return await self._set_state(connection, project_id, locked, ScheduleState.PAUSED)

    async def resume(self, project_id: str, schedule_id: str, principal: Principal) -> Schedule:
        """See `ScheduleStore.resume`."""
        async with self._database.transaction(project_id=project_id) as connection:
            locked = await self._lock(connection, project_id, schedule_id)
            if locked.state is ScheduleState.ACTIVE:
                return locked
            if not locked.timing.has_known_zone:
                zone = locked.timing.time_zone
                raise FailedPreconditionError(
                    f"The time zone {zone} of the schedule {schedule_id} is unknown to this server."
                    " Change the time zone first.",
                    reason=Reason.TIME_ZONE_UNKNOWN,
                    metadata={"id": schedule_id, "time_zone": zone},
                )
            now = (await connection.execute(_NOW)).scalar_one()
            # A single time that has passed meanwhile is due now.
            following = locked.timing.start_time or locked.timing.next_after(now)
            if locked.state is ScheduleState.FINISHED or following is None:
                raise FailedPreconditionError(
                    f"The schedule {schedule_id} has no further tick. Give it another time first.",
                    reason=Reason.SCHEDULE_FINISHED,
                    metadata={"id": schedule_id},
                )
            values = {
                "project_id": project_id,
                "schedule_id": schedule_id,
                "next_time": following,
                **_principal_values(principal),
            }
            return _schedule((await connection.execute(_RESUME, values)).one())

    async def delete(self, project_id: str, schedule_id: str) -> None:
        """See `ScheduleStore.delete`."""
        values = {"project_id": project_id, "schedule_id": schedule_id}
        async with self._database.transaction(project_id=project_id) as connection:
            deleted = (await connection.execute(_DELETE, values)).scalar_one_or_none()
        if deleted is None:
            raise _not_found(schedule_id)

    async def disable_of_agent(self, project_id: str, agent_id: str, reason: str) -> None:
        """See `ScheduleStore.disable_of_agent`."""
        values = {"project_id": project_id, "agent_id": agent_id, "reason": reason}
        async with self._database.transaction(project_id=project_id) as connection:
            await connection.execute(_DISABLE, values)

    async def count_of_principal(self, project_id: str, principal: str) -> int:
        """See `ScheduleStore.count_of_principal`."""
        values = {"project_id": project_id, "principal": principal}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            counted = await connection.execute(_COUNT_OF_PRINCIPAL, values)
            return int(counted.scalar_one())

    async def pause_of_principal(self, project_id: str, principal: str, reason: str) -> int:
        """See `ScheduleStore.pause_of_principal`."""
        values = {"project_id": project_id, "principal": principal, "reason": reason}
        async with self._database.transaction(project_id=project_id) as connection:
            return (await connection.execute(_PAUSE_OF_PRINCIPAL, values)).rowcount

    async def ticks(
        self, project_id: str, schedule_id: str, *, before: datetime | None, limit: int
    ) -> Sequence[Tick]:
        """See `ScheduleStore.ticks`."""
        values = {"project_id": project_id, "schedule_id": schedule_id}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            row = (await connection.execute(_GET, values)).one_or_none()
            _schedule_or_not_found(row, schedule_id)
            page = {**values, "limit": limit}
            if before is None:
                rows = await connection.execute(_NEWEST_TICKS, page)
            else:
                rows = await connection.execute(_OLDER_TICKS, {**page, "before": before})
            return [
                Tick(
                    tick["tick_time"],
                    TickOutcome(tick["outcome"]),
                    tick["run_id"],
                    tick["reason"],
                    tick["create_time"],
                )
                for tick in rows
            ]

    async def due(
        self,
        limit: int,
        *,
        started: Mapping[str, int] = MappingProxyType({}),
        without: Iterable[str] = (),
        without_projects: Iterable[str] = (),
    ) -> Sequence[DueSchedule]:
        """See `ScheduleStore.due`."""
        values = {
            "projects": list(started),
            "counts": list(started.values()),
            "without": list(without),
            "without_projects": list(without_projects),
            "limit": limit,
        }
        rows = await self._worker.system_query(_DUE, values)
        return [DueSchedule(row.project_id, row.id) for row in rows]

    async def fire(self, project_id: str, schedule_id: str) -> str | None:
        """See `ScheduleStore.fire`."""
        values = {"project_id": project_id, "schedule_id": schedule_id}
        async with self._database.transaction(project_id=project_id) as connection:
            row = (await connection.execute(_TAKE, values)).one_or_none()
            if row is None:
                return None
            schedule, now = _schedule(row), row["now"]
            assert schedule.next_time is not None
            last = await self._last_run(connection, project_id, schedule)
            if last is not None and last["error_reason"] in _DISABLING_REASONS:
                await self._set_state(
                    connection,
                    project_id,
                    schedule,
                    ScheduleState.DISABLED,
                    reason=last["error_reason"],
                )
                return None
            if not schedule.timing.has_known_zone:
                await self._set_state(
                    connection,
                    project_id,
                    schedule,
                    ScheduleState.DISABLED,
                    reason=Reason.TIME_ZONE_UNKNOWN.value,
                )
                return None
            due = schedule.timing.due(schedule.next_time, now, MAX_MISSED + 1)
            recorded = await connection.execute(_SEEN, {**values, "since": due[0]})
            acted_on = frozenset(recorded.scalars())
            # The clock of the database may be set back; no tick is processed twice.
            due = [tick for tick in due if tick not in acted_on]
            run_id = ""
            if due:
                run_id, reason = await self._start(connection, schedule, last)
                outcome = TickOutcome.STARTED if run_id else TickOutcome.SKIPPED
                missed = len(due) - 1
                record = {
                    **values,
                    "tick_times": due,
                    "outcomes": [TickOutcome.MISSED.value] * missed + [outcome.value],
                    "run_ids": [""] * missed + [run_id],
                    "reasons": [""] * missed + [reason],
                }
                await connection.execute(_RECORD, record)
            following = schedule.timing.next_after(now)
            state = ScheduleState.FINISHED if following is None else ScheduleState.ACTIVE
            advance = {
                **values,
                "state": state.value,
                "next_time": following,
                "run_id": run_id,
                "tick_time": due[-1] if due else None,
            }
            await connection.execute(_ADVANCE, advance)
            kept_s = timedelta(days=self._terms.history_days).total_seconds()
            await connection.execute(_FORGET, {**values, "kept_s": kept_s})
        return run_id or None

    async def _start(
        self, connection: DatabaseConnection, schedule: Schedule, last: Row | None
    ) -> tuple[str, str]:
        """Queues a run; returns its id and "", or "" and the reason for skipping it."""
        plan = schedule.plan
        running = last is not None and not RunState(last["state"]).final
        if running and plan.on_overlap is OnOverlap.SKIP:
            return "", PREVIOUS_RUN_OPEN
        new = NewRun(
            id=new_id("run"),
            principal=plan.principal,
            agent_id=plan.agent_id,
            conversation_id=plan.conversation_id,
            kind=RunKind.BACKGROUND,
            payload=plan.payload,
            payload_hash=plan.payload_hash,
            max_steps=plan.max_steps,
            on_approval=plan.on_approval,
        )
        try:
            accepted = await self._runs.accept_within(connection, new, may_start=False)
        except FailedPreconditionError as error:
            return "", error.reason.value
        if accepted is None:
            # A run of the conversation was committed at the same moment; the tick stays due.
            raise UnavailableError("The conversation is too busy to take the run.", retry_after=0.1)
        return accepted.run.id, ""

    async def _last_run(
        self, connection: DatabaseConnection, project_id: str, schedule: Schedule
    ) -> Row | None:
        """Returns the run of the previous tick; None if there is none or it is outdated."""
        if not schedule.last_run_id:
            return None
        values = {"project_id": project_id, "run_id": schedule.last_run_id}
        row = (await connection.execute(_LAST_RUN, values)).one_or_none()
        # A run that failed before the schedule was resumed does not disable it again.
        if row is None:
            return None
        outdated = RunState(row["state"]).final and row["create_time"] < schedule.update_time
        return None if outdated else row

    async def _lock(
        self, connection: DatabaseConnection, project_id: str, schedule_id: str
    ) -> Schedule:
        values = {"project_id": project_id, "schedule_id": schedule_id}
        row = (await connection.execute(_HOLD, values)).one_or_none()
        return _schedule_or_not_found(row, schedule_id)

    async def _set_state(
        self,
        connection: DatabaseConnection,
        project_id: str,
        schedule: Schedule,
        state: ScheduleState,
        *,
        reason: str = "",
    ) -> Schedule:
        values = {
            "project_id": project_id,
            "schedule_id": schedule.id,
            "state": state.value,
            "reason": reason,
        }
        return _schedule((await connection.execute(_SET_STATE, values)).one())

    @property
    def _min_interval(self) -> timedelta:
        return timedelta(seconds=self._terms.min_interval_s)


def _principal_values(principal: Principal) -> dict[str, object]:
    return {
        "organization_id": principal.organization_id,
        "principal": principal.name,
        "scopes": sorted(principal.scopes),
    }


def _values(name: str, plan: RunPlan, timing: Timing) -> dict[str, object]:
    principal = plan.principal
    return {
        "name": name,
        **_principal_values(principal),
        "payload": plan.payload,
        "payload_hash": plan.payload_hash,
        "max_steps": plan.max_steps,
        "on_approval": plan.on_approval.value,
        "on_overlap": plan.on_overlap.value,
        "cron": timing.cron,
        "time_zone": timing.time_zone,
        "start_time": timing.start_time,
    }


def _digest(new: NewSchedule) -> bytes:
    """Returns the hash of a request, to recognise a repeated request_id."""
    plan, timing = new.plan, new.timing
    start = timing.start_time.isoformat() if timing.start_time else ""
    parts = (new.name, plan.on_approval, plan.on_overlap, timing.cron, timing.time_zone, start)
    return hashlib.sha256(plan.payload_hash + "\0".join(parts).encode()).digest()


def _schedule(row: Row) -> Schedule:
    principal = Principal(
        row["organization_id"], row["project_id"], row["principal"], frozenset(row["scopes"])
    )
    plan = RunPlan(
        principal,
        row["agent_id"],
        row["conversation_id"],
        bytes(row["payload"]),
        bytes(row["payload_hash"]),
        row["max_steps"],
        OnApproval(row["on_approval"]),
        OnOverlap(row["on_overlap"]),
    )
    return Schedule(
        row["id"],
        row["name"],
        plan,
        Timing(row["cron"], row["time_zone"], row["start_time"]),
        ScheduleState(row["state"]),
        row["state_reason"],
        row["next_time"],
        row["last_run_id"],
        row["last_time"],
        row["create_time"],
        row["update_time"],
    )


def _schedule_or_not_found(row: Row | None, schedule_id: str) -> Schedule:
    if row is None:
        raise _not_found(schedule_id)
    return _schedule(row)


def _not_found(schedule_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no schedule {schedule_id}.",
        reason=Reason.SCHEDULE_NOT_FOUND,
        metadata={"id": schedule_id},
    )


def _name_taken(name: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f'There is a schedule with the name "{name}" already.',
        reason=Reason.NAME_TAKEN,
        metadata={"name": name},
    )
