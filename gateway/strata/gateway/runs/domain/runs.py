"""Runs: their data and the interface of their store. Pure: no transport, no database.

A run is the processing of one message to an agent. Its row is also the lease on its conversation:
at most one run of a conversation is active, the holder (``owner``) renews ``lease_until``, and
every dispatch has a higher ``attempt``. Late writes of an earlier holder have an old attempt and
are refused (fencing).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from strata.gateway.runs.domain.approvals import ApprovalStore, AskedApproval, OnApproval
from strata.gateway.runs.domain.chains import ChainStore
from strata.gateway.runs.domain.memory_agents import MemoryRunStore, TendedTurn, TranscriptRead
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.states import RunState, Trigger, after
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.call_usage import CallUsage
from strata.shared.stop_reasons import FAILURES, StopReason
from strata.shared.usage import Usage


class RunKind(StrEnum):
    """The kind of origin of a run."""

    FOREGROUND = "FOREGROUND"
    BACKGROUND = "BACKGROUND"
    SLEEPTIME = "SLEEPTIME"


def is_group(runner_id: str) -> bool:
    """Whether a run with this agent id and conversation id belongs to a group.

    The run of a group has the id of the group in both fields.
    """
    return runner_id.startswith("group-")


def takes_slot(run: NewRun | Run) -> bool:
    """Whether a run takes a slot of the gateway that executes it.

    A run that only waits for runs of other agents takes none: such runs could hold all slots
    and would then deadlock.
    """
    return run.takes_slot and not is_group(run.agent_id)


def is_streamed_to_client(run: NewRun) -> bool:
    """Whether a client sends the run in a stream, on which it then waits for the events."""
    return run.kind is RunKind.FOREGROUND and not run.parent_run_id and not run.group_run_id


class OnBusy(StrEnum):
    """The behaviour of a new run if its conversation has an active run."""

    ENQUEUE = "ENQUEUE"
    REJECT = "REJECT"
    INTERRUPT = "INTERRUPT"


NO_STOP_REASON = "UNSPECIFIED"
"""The stored value, also sent by webhooks, while a run has no stop reason."""


def trigger_of(stop_reason: StopReason) -> Trigger:
    """Returns how a run with this stop reason ends (the comments of the proto's RunState)."""
    if stop_reason in FAILURES:
        return Trigger.FAIL
    return Trigger.STOP if stop_reason is StopReason.CANCELLED else Trigger.COMPLETE


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a run failed.

    Attributes:
        reason: Name of a `Reason`.
        message: A sentence for the person who runs the agent.
        retryable: Whether sending the same message again may succeed.
    """

    reason: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to accept.

    Attributes:
        id: Its id, which the caller creates.
        principal: On whose behalf it acts.
        agent_id: The agent; the group in the run of a group.
        conversation_id: The conversation, never empty; the group in the run of a group.
        kind: The kind of its origin.
        payload: The serialised request to agent_loop (see `convert`).
        payload_hash: Shows whether a repeated request_id carries the same request.
        max_steps: Maximum number of model calls; 0 for the default.
        request_id: The client's idempotency key; None for none.
        on_busy: The behaviour if the conversation has an active run.
        on_approval: The behaviour if the conversation waits for an approval.
        approval_id: The request that the run answers; empty for none.
        parent_run_id: The run whose agent sends the message; empty for none.
        run_at: Earliest start by the clock of the database; None for at once.
        group_run_id: The group's run that it is a part of, which counts as an open run of the
            project instead of it; empty for none.
        takes_slot: Whether it takes a slot of its gateway. The run of a group never does.
    """

    id: str
    principal: Principal
    agent_id: str
    conversation_id: str
    kind: RunKind
    payload: bytes
    payload_hash: bytes
    max_steps: int = 0
    request_id: str | None = None
    on_busy: OnBusy = OnBusy.ENQUEUE
    on_approval: OnApproval = OnApproval.REJECT
    approval_id: str = ""
    parent_run_id: str = ""
    run_at: datetime | None = None
    group_run_id: str = ""
    takes_slot: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run.

    Attributes:
        stop_reason: Why it ended; None while it has not.
        taint: Labels of untrusted content in its context when it ended, "WEB" and "MCP".
        parent_run_id: See `NewRun`.
        run_at: Earliest start; equals `create_time` for an immediate start.
        takes_slot: See `NewRun`.
    """

    project_id: str
    id: str
    agent_id: str
    conversation_id: str
    kind: RunKind
    state: RunState
    stop_reason: StopReason | None
    failure: RunFailure | None
    usage: Usage
    step_count: int
    attempt: int
    last_sequence: int
    request_id: str
    create_time: datetime
    start_time: datetime | None
    finish_time: datetime | None
    taint: tuple[str, ...] = ()
    parent_run_id: str = ""
    run_at: datetime | None = None
    takes_slot: bool = True


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A run that this gateway holds and has to execute.

    Attributes:
        run: The run, RUNNING or CANCELLING.
        principal: On whose behalf it acts.
        payload: See `NewRun`.
        max_steps: See `NewRun`.
        remaining_s: Seconds until its deadline when the row was read, by the clock of the database.
        lost_holders: Consecutive gateways that died with the run without progress.
        age_s: Seconds since the run was accepted when the row was read, by the same clock.
    """

    run: Run
    principal: Principal
    payload: bytes
    max_steps: int
    remaining_s: float
    lost_holders: int = 0
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """Result of accepting a run.

    Attributes:
        run: The run: the new one, or the first one of a repeated request_id.
        dispatch: The run to execute; None if it is queued or existed before.
        interrupted_run_id: The active run that is cancelled for it.
    """

    run: Run
    dispatch: Dispatch | None
    interrupted_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write to a run; valid while its row has this attempt and owner."""

    project_id: str
    run_id: str
    attempt: int
    owner: str


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a run's log, serialised."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RunMark:
    """Position of a run, for waiting for its next events.

    Attributes:
        address: Address of the gateway that holds it; empty if unknown.
    """

    run_id: str
    state: RunState
    last_sequence: int
    address: str = ""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Stored events of a run, and its position when they were read."""

    mark: RunMark
    events: Sequence[StoredEvent]

    @property
    def state(self) -> RunState:
        """The state of the run."""
        return self.mark.state

    @property
    def last_sequence(self) -> int:
        """The sequence of its last stored event."""
        return self.mark.last_sequence

    def check_kept(self, after: int) -> None:
        """Checks that the events after a sequence were not deleted.

        Args:
            after: The sequence after which the page begins.

        Raises:
            NotFoundError: They were deleted (``RUN_EVENTS_DELETED``).
        """
        if self.events or not self.state.final or after >= self.last_sequence:
            return
        raise NotFoundError(
            f"The run {self.mark.run_id} has ended, and its events were deleted since. GetRun"
            " returns how it ended.",
            reason=Reason.RUN_EVENTS_DELETED,
            metadata={"id": self.mark.run_id},
        )


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The end of a run.

    Attributes:
        asked: Its request for approval; None for none.
        taint: See `Run`.
        tended: The finished turn, if its agent has a memory agent.
        reads_transcript: Whether it was a run of a memory agent.
        read: How far that run has read its range; None for the whole range.
        reopens: The request for approval that it answered without making an approved call; empty
            for none.
    """

    stop_reason: StopReason
    failure: RunFailure | None
    usage: Usage
    step_count: int
    asked: AskedApproval | None = None
    taint: tuple[str, ...] = ()
    reopens: str = ""
    tended: TendedTurn | None = None
    reads_transcript: bool = False
    read: TranscriptRead | None = None

    @property
    def state(self) -> RunState:
        """The final state of the run."""
        return after(RunState.RUNNING, trigger_of(self.stop_reason))


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """A renewed lease.

    Attributes:
        run_id: The run.
        attempt: The attempt in its row.
        cancelling: Whether the run was cancelled through any gateway.
    """

    run_id: str
    attempt: int
    cancelling: bool


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; an empty field means all."""

    agent_id: str = ""
    conversation_id: str = ""
    states: frozenset[RunState] = field(default_factory=frozenset)

    def scope(self) -> str:
        """Returns the filter as text, to bind page tokens to it."""
        return f"runs|{self.agent_id}|{self.conversation_id}|{','.join(sorted(self.states))}"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Usage of a project in a time range."""

    run_count: int = 0
    step_count: int = 0
    usage: Usage = field(default_factory=Usage)

    def __add__(self, other: UsageSum) -> UsageSum:
        """Returns the sum of two."""
        return UsageSum(
            self.run_count + other.run_count,
            self.step_count + other.step_count,
            self.usage + other.usage,
        )


class LeaseLostError(Exception):
    """Another gateway or attempt holds the run, or it has ended: stop writing to it."""


class RunStore(ApprovalStore, ChainStore, MemoryRunStore, Protocol):
    """Store of runs, their leases and their events.

    Methods that take a `Fence` raise `LeaseLostError` if it is no longer valid.
    Every method raises `UnavailableError` when the database cannot be reached.
    """

    async def accept(self, new: NewRun, *, may_start: bool = True) -> Accepted:
        """Stores a run, and takes its conversation if that is free; else queues the run.

        It is one statement. A repeated request_id returns its first run.

        Args:
            new: The run.
            may_start: Whether this gateway can execute it now; otherwise it is queued, and the
                gateway that claims it executes it.

        Raises:
            AbortedError: The conversation is busy and the policy is REJECT.
            FailedPreconditionError: The conversation waits for an approval and the policy is
                REJECT (``APPROVAL_PENDING``); or the request that the run answers is closed
                (``APPROVAL_DECIDED``, ``APPROVAL_EXPIRED``).
            AlreadyExistsError: The request_id was used with another payload.
            ResourceExhaustedError: The project has too many open runs, or too many delayed ones.
        """
        ...

    async def get(self, project_id: str, run_id: str) -> Run:
        """Returns a run.

        Raises:
            NotFoundError: There is none (``RUN_NOT_FOUND``).
        """
        ...

    async def find_request(self, project_id: str, request_id: str) -> Run | None:
        """Returns the run that was accepted with a request id; None if there is none."""
        ...

    async def delayed_of_principal(self, project_id: str, principal: str) -> Sequence[str]:
        """Returns the ids of the delayed runs that act with the scopes of a key."""
        ...

    async def list(
        self, project_id: str, which: RunFilter, *, before: str | None, limit: int
    ) -> Sequence[Run]:
        """Returns runs, newest first; only those before the id `before`, if it is set."""
        ...

    async def events(self, project_id: str, run_id: str, after: int, limit: int = 200) -> EventPage:
        """Returns stored events after a sequence, in order: at most `limit`, and about 2 MiB.

        Raises:
            NotFoundError: There is no such run.
        """
        ...

    async def marks(self, runs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, RunMark]]:
        """Returns the positions of runs, in one statement over all projects.

        Args:
            runs: Pairs of project and run id.

        Returns:
            Pairs of project and position, for runs that exist.
        """
        ...

    async def load(self, project_id: str, run_id: str) -> Dispatch:
        """Returns the data for executing a claimed run.

        Raises:
            LeaseLostError: This gateway does not hold the run.
        """
        ...

    async def append(
        self, fence: Fence, events: Sequence[StoredEvent], *, progressed: bool = False
    ) -> None:
        """Adds events to the log, in one statement.

        Args:
            fence: The right to write to the run.
            events: The events.
            progressed: Whether the run has made progress, which resets `lost_holders`.
        """
        ...

    async def redispatch(self, fence: Fence) -> Fence:
        """Raises the attempt of a run that this gateway holds."""
        ...

    async def finish(
        self, fence: Fence, ending: RunEnding, events: Sequence[StoredEvent], *, take_next: bool
    ) -> Dispatch | None:
        """Ends a run with its last events and releases its conversation, in one statement.

        Returns:
            The next run of the conversation, taken by this gateway if `take_next`.
        """
        ...

    async def cancel(self, project_id: str, run_id: str, finished: bytes) -> Run:
        """Ends a queued run with `finished` as its only event, or marks a running one CANCELLING.

        Raises:
            NotFoundError: There is no such run.
        """
        ...

    async def usage(
        self, project_id: str, start: datetime, end: datetime, agent_id: str
    ) -> UsageSum:
        """Sums the runs that ended in a range of time, and the usage that was added in it."""
        ...

    async def add_usage(
        self, project_id: str, usage_id: str, agent_id: str, spent: CallUsage
    ) -> None:
        """Adds the usage of model calls outside of runs, at the present time.

        Args:
            project_id: The project.
            usage_id: Identifies it; usage with a known id is not added again.
            agent_id: The agent for which the models were called.
            spent: The model calls.
        """
        ...

    async def usage_series(
        self, project_id: str, starts: Sequence[datetime], end: datetime, agent_id: str
    ) -> Sequence[UsageSum]:
        """As `usage` for each part of a range of time, in one statement.

        Args:
            project_id: The project.
            starts: Where each part begins, in order; at least one.
            end: End of the last part, which it does not hold.
            agent_id: Only runs of this agent; empty for all.

        Returns:
            A sum for each part.
        """
        ...

    async def usage_of_projects(
        self, project_ids: Sequence[str], start: datetime, end: datetime
    ) -> Mapping[str, UsageSum]:
        """As `usage`, by project; projects without usage are left out.

        The caller must have checked the access to the projects.
        """
        ...

    async def renew(self, run_ids: Sequence[str]) -> Sequence[RenewedLease]:
        """Renews this gateway's leases on these runs, in one statement.

        Returns:
            The leases that this gateway still holds.
        """
        ...

    async def claim(
        self,
        limit: int,
        *,
        held: Mapping[str, int] | None = None,
        most: int | None = None,
        own_runs: Iterable[str] = (),
    ) -> Sequence[tuple[str, str]]:
        """Claims runs with an expired lease, then queued runs that may start.

        The projects are served in turn: each call begins after the last project of the call before.

        Args:
            limit: Maximum number of runs.
            held: Number of active runs in this gateway by project.
            most: Maximum number of active runs of one project, including those; None for any
                number.
            own_runs: The runs that this gateway carries out. They are not claimed, even if it could
                not renew their leases in time, or the clock of the database was set forward.

        Returns:
            Pairs of project and run id.
        """
        ...

    async def release(self) -> int:
        """Releases all leases of this gateway and returns their number."""
        ...

    async def release_others(self) -> int:
        """Expires the leases of all other gateways, which MUST be dead; returns their number."""
        ...
