"""Schedules and their ticks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from strata.gateway.runs.approvals import OnApproval
from strata.gateway.runs.domain import Principal
from strata.gateway.schedules.timing import Timing


class ScheduleState(StrEnum):
    """Whether a schedule starts runs; see the proto of the same name."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    DISABLED = "DISABLED"
    FINISHED = "FINISHED"


class OnOverlap(StrEnum):
    """What to do at a tick when the run of the tick before is not over."""

    SKIP = "SKIP"
    ENQUEUE = "ENQUEUE"


class TickOutcome(StrEnum):
    """What a tick led to."""

    STARTED = "STARTED"
    SKIPPED = "SKIPPED"
    MISSED = "MISSED"


@dataclass(frozen=True, slots=True)
class ScheduleTerms:
    """Bounds of schedules.

    Attributes:
        per_project: Schedules of a project, finished ones included.
        min_interval_s: Seconds between two ticks of a schedule at least.
        history_days: Days for which ticks are kept.
    """

    per_project: int = 100
    min_interval_s: float = 60.0
    history_days: float = 30.0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What each run of a schedule is.

    Attributes:
        principal: On whose behalf the runs act.
        agent_id: The agent.
        conversation_id: The conversation, never empty.
        payload: As in `NewRun`.
        payload_hash: As in `NewRun`.
        max_steps: As in `NewRun`.
        on_approval: What to do while the conversation waits for an approval.
        on_overlap: What to do when the run of the tick before is not over.
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
    """A schedule to be stored.

    Attributes:
        id: Its id, made by the caller.
        name: Unique in the project.
        plan: What each run is.
        timing: When they start.
        request_id: The client's, None for none.
    """

    id: str
    name: str
    plan: RunPlan
    timing: Timing
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as stored.

    Attributes:
        next_time: The first tick that was not acted on; None unless it is ACTIVE.
        last_run_id: The last run that it has started; empty for none.
        last_time: The tick of that run.
        state_reason: Why the server has disabled it: the name of a `Reason`.
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
    """A time at which a schedule was due, and what came of it."""

    tick_time: datetime
    outcome: TickOutcome
    run_id: str
    reason: str
    create_time: datetime


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule whose next tick has come, as the worker sees it."""

    project_id: str
    id: str
    next_time: datetime


class ScheduleStore(Protocol):
    """Where schedules are. Every time is judged by the clock of the database.

    Methods that name a schedule raise `NotFoundError` (``SCHEDULE_NOT_FOUND``) if there is none.
    """

    async def create(self, project_id: str, new: NewSchedule) -> Schedule:
        """Stores a schedule; a request_id that is known gives the schedule it named first.

        Raises:
            AlreadyExistsError: The name is taken, or the request_id had another payload.
            ResourceExhaustedError: The project has as many schedules as it may have.
            TimingError: The times cannot be used.
        """
        ...

    async def get(self, project_id: str, schedule_id: str) -> Schedule:
        """Returns a schedule."""
        ...

    async def list(
        self, project_id: str, *, agent_id: str, name: str, before: str | None, limit: int
    ) -> Sequence[Schedule]:
        """Returns schedules, newest first, those before the id `before` if it is not None."""
        ...

    async def update(
        self, project_id: str, schedule_id: str, *, name: str, plan: RunPlan, timing: Timing
    ) -> Schedule:
        """Replaces name, plan and times.

        Raises:
            AlreadyExistsError: The name is taken.
            TimingError: The new times cannot be used.
        """
        ...

    async def pause(self, project_id: str, schedule_id: str) -> Schedule:
        """Pauses a schedule that is active."""
        ...

    async def resume(self, project_id: str, schedule_id: str, principal: Principal) -> Schedule:
        """Goes on with a schedule that is paused or disabled; it acts for `principal` from now on.

        Raises:
            FailedPreconditionError: It has no tick left (``SCHEDULE_FINISHED``).
        """
        ...

    async def delete(self, project_id: str, schedule_id: str) -> None:
        """Deletes a schedule and its ticks."""
        ...

    async def disable_of_agent(self, project_id: str, agent_id: str, reason: str) -> None:
        """Disables the schedules of an agent that is gone."""
        ...

    async def count_of_principal(self, project_id: str, principal: str) -> int:
        """Returns how many active schedules act with the scopes of a key."""
        ...

    async def pause_of_principal(self, project_id: str, principal: str, reason: str) -> int:
        """Pauses the active schedules that act with the scopes of a key; returns how many."""
        ...

    async def ticks(
        self, project_id: str, schedule_id: str, *, before: datetime | None, limit: int
    ) -> Sequence[Tick]:
        """Returns ticks, newest first, those before the time `before` if it is not None."""
        ...

    async def due(self, after: DueSchedule | None, limit: int) -> Sequence[DueSchedule]:
        """Returns schedules of all projects that are due, those after `after`, earliest first."""
        ...

    async def fire(self, project_id: str, schedule_id: str) -> str | None:
        """Acts on the ticks of a schedule that are due, in one transaction.

        The latest one starts a run; those before it are recorded as missed.

        Returns:
            The id of the run; None if there is none, or another gateway acts on the schedule.

        Raises:
            ResourceExhaustedError: The project has too many open runs; the tick stays due.
        """
        ...
