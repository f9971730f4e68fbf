"""A run that this gateway carries out."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from strata.gateway.runs.domain import Dispatch
from strata.gateway.runs.live import LiveRun
from strata.gateway.runs.states import RunState


class Stop(Enum):
    """How a run under way is to stop."""

    CANCEL = auto()
    ABANDON = auto()


class ActiveRun:
    """A run, its log, its deadline (monotonic time) and the task that carries it out."""

    def __init__(self, dispatch: Dispatch, live: LiveRun, deadline: float) -> None:
        self.dispatch = dispatch
        self.deadline = deadline
        self.live = live
        self.stop: Stop | None = None
        self.stopped = asyncio.Event()
        self.cancelled = asyncio.Event()
        # Whether an attempt may have left something: here, or at an earlier holder.
        self.begun = dispatch.run.attempt > 1
        if dispatch.run.state is RunState.CANCELLING:
            self.ask_to_stop(Stop.CANCEL)
        # Whether the next run of its conversation was left in the queue.
        self.next_left = False
        self.task: asyncio.Task[None] | None = None

    @property
    def abandoned(self) -> bool:
        """Whether the run is to be left as it is, for another gateway."""
        return self.stop is Stop.ABANDON

    def ask_to_stop(self, stop: Stop) -> None:
        """Asks its task to stop."""
        # What was abandoned stays so; a cancellation may still turn into that.
        if self.stop is not Stop.ABANDON:
            self.stop = stop
        if stop is Stop.CANCEL:
            self.cancelled.set()
        self.stopped.set()
