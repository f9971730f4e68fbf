"""Schedules and their ticks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from strata.gateway.runs.domain.approvals import OnApproval
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.schedules.timing import Timing


class ScheduleState(StrEnum):
    """Whether a schedule starts runs; see the proto of the same name."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    DISABLED = "DISABLED"
    FINISHED = "FINISHED"


class OnOverlap(StrEnum):
    """The behaviour at a tick if the run of the previous tick has not ended."""

    SKIP = "SKIP"
    ENQUEUE = "ENQUEUE"


class TickOutcome(StrEnum):
    """Result of a tick."""

    STARTED = "STARTED"
    SKIPPED = "SKIPPED"
    MISSED = "MISSED"


@dataclass(frozen=True, slots=True)
class ScheduleTerms:
    """Limits of schedules.

    Attributes:
        per_project: Maximum number of schedules per project, including finished ones.
        min_interval_s: Minimum seconds between two ticks of a schedule.
        history_days: Days to keep ticks.
    """

    per_project: int = 100
    min_interval_s: float = 60.0
    history_days: float = 30.0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The template of a schedule's runs.

    Attributes:
        principal: On whose behalf the runs act.
        agent_id: The agent.
        conversation_id: The conversation, never empty.
        payload: As in `NewRun`.
        payload_hash: As in `NewRun`.
        max_steps: As in `NewRun`.
        on_approval: The behaviour if the conversation waits for an approval.
        on_overlap: The behaviour if the run of the previous tick has not ended.
    """

    principal: Principal
    agent_id: str
    conversation_id: str
    payload: bytes
    payload_hash: bytes
    max_steps: int
    on_approval: OnApproval
    on_overlap: OnOverlap


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A schedule to store.

    Attributes:
        id: Its id, which the caller creates.
        name: Its name, unique in the project.
        plan: Template of its runs.
        timing: Times of its runs.
        request_id: The client's idempotency key; None for none.
    """

    id: str
    name: str
    plan: RunPlan
    timing: Timing
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A stored schedule.

    Attributes:
        next_time: The next tick; None unless the schedule is ACTIVE.
        last_run_id: The last run that it started; empty for none.
        last_time: The tick of that run.
        state_reason: Why the server paused or disabled it, such as the name of a `Reason`.
    """

    id: str
    name: str
    plan: RunPlan
    timing: Timing
    state: ScheduleState
    state_reason: str
    next_time: datetime | None
    last_run_id: str
    last_time: datetime | None
    create_time: datetime
    update_time: datetime


@dataclass(frozen=True, slots=True)
class Tick:
    """A time at which a schedule was due, with its result."""

    tick_time: datetime
    outcome: TickOutcome
    run_id: str
    reason: str
    create_time: datetime


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A due schedule, with the columns that the worker role may read."""

    project_id: str
    id: str


class ScheduleStore(Protocol):
    """Store of schedules. All times are compared with the clock of the database.

    Methods that name a schedule raise `NotFoundError` (``SCHEDULE_NOT_FOUND``) if there is none.
    """

    async def create(self, project_id: str, new: NewSchedule) -> Schedule:
        """Stores a schedule; a repeated request_id returns its first schedule.

        Raises:
            AlreadyExistsError: The name is taken, or the request_id had another payload.
            ResourceExhaustedError: The project has the maximum number of schedules.
            TimingError: The times are invalid.
        """
        ...

    async def get(self, project_id: str, schedule_id: str) -> Schedule:
        """Returns a schedule."""
        ...

    async def list(
        self, project_id: str, *, agent_id: str, name: str, before: str | None, limit: int
    ) -> Sequence[Schedule]:
        """Returns schedules, newest first; only those before the id `before`, unless it is None."""
        ...

    async def update(
        self, project_id: str, schedule_id: str, *, name: str, plan: RunPlan, timing: Timing
    ) -> Schedule:
        """Replaces name, plan and times.

        Raises:
            AlreadyExistsError: The name is taken.
            TimingError: The new times are invalid.
        """
        ...

    async def pause(self, project_id: str, schedule_id: str) -> Schedule:
        """Pauses a schedule that is active."""
        ...

    async def resume(self, project_id: str, schedule_id: str, principal: Principal) -> Schedule:
        """Resumes a paused or disabled schedule, which then acts for `principal`.

        Raises:
            FailedPreconditionError: It has no further tick (``SCHEDULE_FINISHED``), or its time
                zone is unknown (``TIME_ZONE_UNKNOWN``).
        """
        ...

    async def delete(self, project_id: str, schedule_id: str) -> None:
        """Deletes a schedule and its ticks."""
        ...

    async def disable_of_agent(self, project_id: str, agent_id: str, reason: str) -> None:
        """Disables the schedules of a deleted agent."""
        ...

    async def count_of_principal(self, project_id: str, principal: str) -> int:
        """Returns the number of active schedules that act with the scopes of a key."""
        ...

    async def pause_of_principal(self, project_id: str, principal: str, reason: str) -> int:
        """Pauses the active schedules that act with the scopes of a key; returns their number."""
        ...

    async def ticks(
        self, project_id: str, schedule_id: str, *, before: datetime | None, limit: int
    ) -> Sequence[Tick]:
        """Returns ticks, newest first; only those before the time `before`, unless it is None."""
        ...

    async def due(
        self,
        limit: int,
        *,
        started: Mapping[str, int] = MappingProxyType({}),
        without: Iterable[str] = (),
        without_projects: Iterable[str] = (),
    ) -> Sequence[DueSchedule]:
        """Returns due schedules of all projects: one of each project, then the second of each.

        Those of a project are in the order of their times.

        Args:
            limit: Maximum number of schedules to return.
            started: Number of schedules that a project has had, for projects that have had some;
                they count as if they came before.
            without: Ids of schedules to leave out.
            without_projects: Projects to leave out.
        """
        ...

    async def fire(self, project_id: str, schedule_id: str) -> str | None:
        """Processes the due ticks of a schedule in one transaction.

        The latest tick starts a run; earlier ones are recorded as missed.

        Returns:
            The id of the run; None if there is none, or another gateway processes the schedule.

        Raises:
            ResourceExhaustedError: The project has too many open runs; the tick stays due.
        """
        ...
