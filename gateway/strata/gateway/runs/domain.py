"""What a run is and how it lives. Pure: no transport, no database.

A run is one message to an agent and all that follows from it. Its row is also the
lease on its conversation: at most one run of a conversation is active, the holder
(``owner``) renews ``lease_until``, and every dispatch has a higher ``attempt``, by
which later writes of an earlier holder are recognised and refused (fencing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from strata.gateway.runs.approvals import ApprovalStore, AskedApproval, OnApproval
from strata.gateway.runs.chains import ChainStore
from strata.gateway.runs.delayed_runs import DelayedRunStore
from strata.gateway.runs.memory_agents import MemoryRunStore, TendedTurn, TranscriptRead
from strata.gateway.runs.states import RunState, Trigger, after
from strata.shared.errors import NotFoundError, Reason


class RunKind(StrEnum):
    """What started a run."""

    FOREGROUND = "FOREGROUND"
    BACKGROUND = "BACKGROUND"
    SLEEPTIME = "SLEEPTIME"


def is_group(runner_id: str) -> bool:
    """Says whether a run with this agent id and conversation id is that of a group.

    The run of a group has the id of the group in the place of both.
    """
    return runner_id.startswith("group-")


def takes_slot(run: NewRun | Run) -> bool:
    """Says whether a run takes a slot of the gateway that carries it out.

    A run that only waits for runs of other agents takes none: such runs could hold all slots
    and would then wait for ever.
    """
    return run.takes_slot and not is_group(run.agent_id)


class OnBusy(StrEnum):
    """What to do when the conversation has an active run."""

    ENQUEUE = "ENQUEUE"
    REJECT = "REJECT"
    INTERRUPT = "INTERRUPT"


class StopReason(StrEnum):
    """Why a run ended; equals ``strata.api.common.v1.StopReason`` without its prefix."""

    UNSPECIFIED = "UNSPECIFIED"
    END_TURN = "END_TURN"
    ERROR = "ERROR"
    LLM_API_ERROR = "LLM_API_ERROR"
    INVALID_LLM_RESPONSE = "INVALID_LLM_RESPONSE"
    INVALID_TOOL_CALL = "INVALID_TOOL_CALL"
    MAX_STEPS = "MAX_STEPS"
    MAX_TOKENS_EXCEEDED = "MAX_TOKENS_EXCEEDED"
    NO_TOOL_CALL = "NO_TOOL_CALL"
    TOOL_RULE = "TOOL_RULE"
    CANCELLED = "CANCELLED"
    REQUIRES_APPROVAL = "REQUIRES_APPROVAL"
    NO_PROGRESS = "NO_PROGRESS"
    CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT = "CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT"


_ENDED_WELL = frozenset(
    {
        StopReason.END_TURN,
        StopReason.MAX_STEPS,
        StopReason.TOOL_RULE,
        StopReason.REQUIRES_APPROVAL,
    }
)


def trigger_of(stop_reason: StopReason) -> Trigger:
    """Returns how a run with this stop reason ends (the comments of the proto's RunState)."""
    if stop_reason in _ENDED_WELL:
        return Trigger.COMPLETE
    return Trigger.STOP if stop_reason is StopReason.CANCELLED else Trigger.FAIL


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What went wrong in a run.

    Attributes:
        reason: Name of a `Reason`.
        message: A sentence for the person who runs the agent.
        retryable: Sending the same message again may work.
    """

    reason: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, summed over the steps of a run; see the proto of the same name."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
        )

    def less(self, other: Usage) -> Usage:
        """What is left of these tokens without the others; never below 0."""
        left = Usage(
            max(0, self.prompt_tokens - other.prompt_tokens),
            max(0, self.completion_tokens - other.completion_tokens),
            max(0, self.total_tokens - other.total_tokens),
            max(0, self.cached_input_tokens - other.cached_input_tokens),
            max(0, self.cache_write_tokens - other.cache_write_tokens),
            max(0, self.reasoning_tokens - other.reasoning_tokens),
        )
        return replace(left, estimated=self.estimated) if left != Usage() else left


@dataclass(frozen=True, slots=True)
class Principal:
    """On whose behalf a run acts; stored with it, so that any gateway can go on with it."""

    organization_id: str
    project_id: str
    name: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be accepted.

    Attributes:
        id: Its id, made by the caller.
        principal: On whose behalf.
        agent_id: The agent; the group in the run of a group.
        conversation_id: The conversation, never empty; the group in the run of a group.
        kind: What started it.
        payload: What agent_loop needs beyond the ids (serialised, see `convert`).
        payload_hash: Tells whether a repeated request_id carries the same request.
        max_steps: Most model calls, 0 for the default.
        request_id: The client's, None for none.
        on_busy: What to do when the conversation has an active run.
        on_approval: What to do when the conversation waits for an approval.
        approval_id: The request that the run answers; empty for none.
        parent_run_id: The run whose agent sends the message; empty for none.
        run_at: When it may start, by the clock of the database; None for at once.
        group_run_id: The run of a group that it is a part of, which counts in its place as an
            open run of the project; empty for none.
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
    """A run as stored.

    Attributes:
        taint: Labels of strangers' text in its context when it ended, "WEB" and "MCP".
        parent_run_id: See `NewRun`.
        run_at: When it may start; equals `create_time` if that was at once.
        takes_slot: See `NewRun`.
    """

    project_id: str
    id: str
    agent_id: str
    conversation_id: str
    kind: RunKind
    state: RunState
    stop_reason: StopReason
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
    """A run that this gateway holds and has to carry out.

    Attributes:
        run: The run, RUNNING or CANCELLING.
        principal: On whose behalf.
        payload: See `NewRun`.
        max_steps: See `NewRun`.
        remaining_s: Seconds until the run must be over, counted from the moment the row was
            read, by the clock of the database.
        lost_holders: Gateways that were lost in a row while they carried it out, without progress.
        age_s: Seconds since the run was accepted, when the row was read, by the same clock.
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
    """The answer to a new run.

    Attributes:
        run: The run: the new one, or the first one of a repeated request_id.
        dispatch: What to carry out; None if the run is queued or was there before.
        interrupted_run_id: The active run that was asked to stop for it.
    """

    run: Run
    dispatch: Dispatch | None
    interrupted_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write to a run: valid while the row shows this attempt and owner."""

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
    """Where a run is, for those who wait for it to move.

    Attributes:
        address: Where the gateway that holds it is reached; empty if none does, or it does not say.
    """

    run_id: str
    state: RunState
    last_sequence: int
    address: str = ""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Stored events of a run, and where the run was when they were read."""

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
        """Checks that there are events behind a sequence if the run ever had some.

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
class Ending:
    """How a run ended.

    Attributes:
        asked: What it asks a person for; None for nothing.
        taint: See `Run`.
        tended: The turn, if its agent has a memory agent and it is over.
        reads_transcript: It was a run of a memory agent.
        read: How far that has read its range; None for the whole range.
        reopens: The request for approval that it had the answer to, and came to no call of;
            empty for none.
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
        """The state that a run with this end is in."""
        return after(RunState.RUNNING, trigger_of(self.stop_reason))


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that was renewed.

    Attributes:
        run_id: The run.
        attempt: The attempt that the row shows.
        cancelling: Somebody asked, at any gateway, to stop the run.
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
    """Use of a project in a range of time."""

    run_count: int
    step_count: int
    usage: Usage


class LeaseLostError(Exception):
    """The run is held by another gateway or attempt, or is over: stop writing to it."""


class RunStore(ApprovalStore, ChainStore, MemoryRunStore, DelayedRunStore, Protocol):
    """Where runs, their leases and their events are.

    Methods that take a `Fence` raise `LeaseLostError` if it does not hold any more.
    Every method raises `UnavailableError` when the database cannot be reached.
    """

    async def accept(self, new: NewRun, *, may_start: bool = True) -> Accepted:
        """Stores a run; takes its conversation if that is free, else queues the run.

        One statement. A request_id that is known gives the run it named first.

        Args:
            new: The run.
            may_start: Whether this gateway can carry it out now; otherwise it is queued, and
                the gateway that claims it carries it out.

        Raises:
            AbortedError: The conversation is busy and the policy is REJECT.
            FailedPreconditionError: The conversation waits for an approval and the policy is
                REJECT (``APPROVAL_PENDING``); or the request that the run answers is not open any
                more (``APPROVAL_DECIDED``, ``APPROVAL_EXPIRED``).
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

    async def list(
        self, project_id: str, which: RunFilter, *, before: str | None, limit: int
    ) -> Sequence[Run]:
        """Returns runs, newest first, those before the id `before` if it is given."""
        ...

    async def events(self, project_id: str, run_id: str, after: int, limit: int = 200) -> EventPage:
        """Returns stored events after a sequence, in order: at most `limit`, and about 2 MiB.

        Raises:
            NotFoundError: There is no such run.
        """
        ...

    async def marks(self, runs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, RunMark]]:
        """Returns where runs are, in one statement over all projects.

        Args:
            runs: Project and id of each.

        Returns:
            Project and mark of each that there is.
        """
        ...

    async def load(self, project_id: str, run_id: str) -> Dispatch:
        """Returns what is needed to carry out a claimed run.

        Raises:
            LeaseLostError: This gateway does not hold the run.
        """
        ...

    async def append(
        self, fence: Fence, events: Sequence[StoredEvent], *, progressed: bool = False
    ) -> None:
        """Adds events to the log, in one statement.

        Args:
            fence: The hold on the run.
            events: The events.
            progressed: The run has come further: holders lost before count no more.
        """
        ...

    async def redispatch(self, fence: Fence) -> Fence:
        """Raises the attempt of a run that this gateway holds."""
        ...

    async def finish(
        self, fence: Fence, ending: Ending, events: Sequence[StoredEvent], *, take_next: bool
    ) -> Dispatch | None:
        """Ends a run with its last events and frees the conversation, in one statement.

        Returns:
            The next run of the conversation, taken by this gateway if `take_next`.
        """
        ...

    async def cancel(self, project_id: str, run_id: str, finished: bytes) -> Run:
        """Ends a queued run, with `finished` as its only event; asks a running one to stop.

        Raises:
            NotFoundError: There is no such run.
        """
        ...

    async def usage(
        self, project_id: str, start: datetime, end: datetime, agent_id: str
    ) -> UsageSum:
        """Sums the runs that ended in a range of time."""
        ...

    async def usage_of_projects(
        self, project_ids: Sequence[str], start: datetime, end: datetime
    ) -> Mapping[str, UsageSum]:
        """Sums the runs that ended in a range of time by project; without runs there is no entry.

        The caller answers for it that the projects may be reached.
        """
        ...

    async def renew(self, run_ids: Sequence[str]) -> Sequence[Held]:
        """Renews this gateway's leases on these runs, in one statement.

        Returns:
            Those that it still holds.
        """
        ...

    async def claim(
        self, limit: int, *, held: Mapping[str, int] | None = None, most: int | None = None
    ) -> Sequence[tuple[str, str]]:
        """Takes runs whose lease has run out, then queued runs that may start.

        The projects are served in turn: each call begins after the project that the call before
        it ended with.

        Args:
            limit: Runs in all.
            held: Runs of each project that this gateway carries out already.
            most: Runs of one project that it carries out, with those; None for any number.

        Returns:
            Project and id of each.
        """
        ...

    async def release(self) -> int:
        """Gives all leases of this gateway back and returns how many there were."""
        ...

    async def release_others(self) -> int:
        """Ends the leases of all other gateways, which MUST be dead; returns how many."""
        ...
