"""State of a run that this gateway executes."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from strata.gateway.runs.domain import Dispatch
from strata.gateway.runs.live_run import LiveRun
from strata.gateway.runs.run_work import RunWork
from strata.gateway.runs.states import RunState


class StopKind(Enum):
    """How to stop an active run: cancel it, or leave it for another gateway."""

    CANCEL = auto()
    ABANDON = auto()


class ActiveRun:
    """A run with its event log, its work, its deadline (monotonic time) and its task."""

    def __init__(self, dispatch: Dispatch, live: LiveRun, work: RunWork, deadline: float) -> None:
        self.dispatch = dispatch
        self.work = work
        self.deadline = deadline
        self.live = live
        self.stop: StopKind | None = None
        self.stopped = asyncio.Event()
        self.cancelled = asyncio.Event()
        # Whether an attempt, here or by an earlier holder, may have had effects.
        self.may_have_effects = dispatch.run.attempt > 1
        if dispatch.run.state is RunState.CANCELLING:
            self.ask_to_stop(StopKind.CANCEL)
        # Whether the next run of its conversation stays in the queue.
        self.next_run_queued = False
        self.task: asyncio.Task[None] | None = None

    @property
    def abandoned(self) -> bool:
        """Whether the run is left for another gateway."""
        return self.stop is StopKind.ABANDON

    def ask_to_stop(self, stop: StopKind) -> None:
        """Signals its task to stop."""
        # ABANDON overrides CANCEL, and is final.
        if self.stop is not StopKind.ABANDON:
            self.stop = stop
        if stop is StopKind.CANCEL:
            self.cancelled.set()
        self.stopped.set()
