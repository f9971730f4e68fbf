"""The states of a run and what can happen in each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from strata.shared.errors import FailedPreconditionError, Reason


class RunState(StrEnum):
    """Where a run is in its life."""

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
        """Whether nothing can happen to the run any more."""
        return self in FINAL_STATES


ACTIVE_STATES = frozenset({RunState.RUNNING, RunState.CANCELLING})
OPEN_STATES = ACTIVE_STATES | {RunState.QUEUED}
FINAL_STATES = frozenset(RunState) - OPEN_STATES


class Trigger(StrEnum):
    """What can happen to a run."""

    DISPATCH = "DISPATCH"
    """A gateway takes it from the queue."""
    TAKE_OVER = "TAKE_OVER"
    """A gateway takes it from a holder whose lease has run out, or dispatches it again."""
    CANCEL = "CANCEL"
    """Somebody asks to stop it."""
    COMPLETE = "COMPLETE"
    """It ended well."""
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
    # A reply that came in the moment of the cancellation stays a reply.
    (RunState.CANCELLING, Trigger.COMPLETE): RunState.COMPLETED,
    (RunState.CANCELLING, Trigger.FAIL): RunState.FAILED,
    (RunState.CANCELLING, Trigger.STOP): RunState.CANCELLED,
    # Cancelling a run that is over is success and changes nothing.
    (RunState.COMPLETED, Trigger.CANCEL): RunState.COMPLETED,
    (RunState.FAILED, Trigger.CANCEL): RunState.FAILED,
    (RunState.CANCELLED, Trigger.CANCEL): RunState.CANCELLED,
}


def after(state: RunState, trigger: Trigger) -> RunState:
    """Returns the state that follows.

    Raises:
        FailedPreconditionError: This cannot happen in the state (``RUN_FINISHED`` where
            the run is over).
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
    """Returns the states in which this can happen; the guards of the SQL are made from it."""
    return frozenset(state for state, each in TRANSITIONS if each is trigger)
