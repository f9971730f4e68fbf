"""What the person sees while the model is fetched, the runtime is built and the model is loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from strata.shared.errors import FailedPreconditionError, Reason


class Phase(StrEnum):
    """The three things that have to happen before `local-demo` answers."""

    MODEL = "model"
    RUNTIME = "runtime"
    LOAD = "load"


@dataclass(frozen=True)
class Progress:
    """One step forward.

    Attributes:
        phase: What is being worked on.
        message: A sentence for the person.
        done: How much is finished, in `unit`.
        total: How much there is, in `unit`; 0 while it is unknown.
        unit: "bytes" or "steps".
    """

    phase: Phase
    message: str
    done: int = 0
    total: int = 0
    unit: str = "steps"


ProgressCallback = Callable[[Progress], None]


class LocalModelError(FailedPreconditionError):
    """The local demo model cannot be used here; the message says why and what would help."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.MODEL_NOT_CONFIGURED)


class WorkCancelledError(Exception):
    """The work was given up because the caller asked for it."""


class Cancellation:
    """Lets the event loop stop work that runs in a thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Asks the work to stop at its next check."""
        self._event.set()

    def check(self) -> None:
        """Raises WorkCancelledError once `cancel` was called."""
        if self._event.is_set():
            raise WorkCancelledError

    def wait(self, seconds: float) -> None:
        """Sleeps, but raises WorkCancelledError as soon as `cancel` is called."""
        self._event.wait(seconds)
        self.check()


def ignore(_: Progress) -> None:
    """A progress callback for callers with nobody to tell."""
