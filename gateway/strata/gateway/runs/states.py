"""The states of a run and their transitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from strata.protocol.errors import FailedPreconditionError, Reason


class RunState(StrEnum):
    """State of a run."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def active(self) -> bool:
        """Whether the run holds its conversation."""
        return self in ACTIVE_STATES

    @property
    def final(self) -> bool:
        """Whether the run has ended."""
        return self in FINAL_STATES


ACTIVE_STATES = frozenset({RunState.RUNNING, RunState.CANCELLING})
OPEN_STATES = ACTIVE_STATES | {RunState.QUEUED}
FINAL_STATES = frozenset(RunState) - OPEN_STATES


class Trigger(StrEnum):
    """Events that change the state of a run."""

    DISPATCH = "DISPATCH"
    """A gateway takes it from the queue."""
    TAKE_OVER = "TAKE_OVER"
    """A gateway claims it from a holder with an expired lease, or dispatches it again."""
    CANCEL = "CANCEL"
    """It is cancelled."""
    COMPLETE = "COMPLETE"
    """It ended successfully."""
    FAIL = "FAIL"
    """It ended with an error."""
    STOP = "STOP"
    """It ended because it was cancelled."""


TRANSITIONS: Mapping[tuple[RunState, Trigger], RunState] = {
    (RunState.QUEUED, Trigger.DISPATCH): RunState.RUNNING,
    (RunState.QUEUED, Trigger.CANCEL): RunState.CANCELLED,
    (RunState.RUNNING, Trigger.TAKE_OVER): RunState.RUNNING,
    (RunState.RUNNING, Trigger.CANCEL): RunState.CANCELLING,
    (RunState.RUNNING, Trigger.COMPLETE): RunState.COMPLETED,
    (RunState.RUNNING, Trigger.FAIL): RunState.FAILED,
    (RunState.RUNNING, Trigger.STOP): RunState.CANCELLED,
    (RunState.CANCELLING, Trigger.TAKE_OVER): RunState.CANCELLING,
    (RunState.CANCELLING, Trigger.CANCEL): RunState.CANCELLING,
    # A reply that arrived at the moment of the cancellation is kept.
    (RunState.CANCELLING, Trigger.COMPLETE): RunState.COMPLETED,
    (RunState.CANCELLING, Trigger.FAIL): RunState.FAILED,
    (RunState.CANCELLING, Trigger.STOP): RunState.CANCELLED,
    # Cancelling a finished run succeeds and changes nothing.
    (RunState.COMPLETED, Trigger.CANCEL): RunState.COMPLETED,
    (RunState.FAILED, Trigger.CANCEL): RunState.FAILED,
    (RunState.CANCELLED, Trigger.CANCEL): RunState.CANCELLED,
}


def after(state: RunState, trigger: Trigger) -> RunState:
    """Returns the state after a trigger.

    Raises:
        FailedPreconditionError: The state does not allow it (``RUN_FINISHED``).
    """
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        raise FailedPreconditionError(
            f"A run that is {state} cannot {trigger.lower().replace('_', ' ')}.",
            reason=Reason.RUN_FINISHED,
            metadata={"state": state},
        ) from None


def sources(trigger: Trigger) -> frozenset[RunState]:
    """Returns the states that allow a trigger; the guards of the SQL are built from it."""
    return frozenset(state for state, accepted in TRANSITIONS if accepted is trigger)
