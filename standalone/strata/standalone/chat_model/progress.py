"""Progress reports and cancellation while the local demo model is prepared and loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from strata.protocol.errors import FailedPreconditionError, Reason


class StartPhase(StrEnum):
    """The steps before `local-demo` can answer."""

    MODEL = "model"
    RUNTIME = "runtime"
    LOAD = "load"


@dataclass(frozen=True)
class Progress:
    """A progress report.

    Attributes:
        phase: The current phase.
        message: A sentence for the user.
        done: Finished amount, in `unit`.
        total: Total amount, in `unit`; 0 while it is unknown.
        unit: "bytes" or "steps".
    """

    phase: StartPhase
    message: str
    done: int = 0
    total: int = 0
    unit: str = "steps"


ProgressCallback = Callable[[Progress], None]


class LocalModelError(FailedPreconditionError):
    """The local demo model cannot be used here; the message says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.MODEL_NOT_CONFIGURED)


class WorkCancelledError(Exception):
    """The caller cancelled the work."""


class Cancellation:
    """A flag with which the event loop stops work that runs in a thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Makes the next `check` of the work raise."""
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
    """A progress callback that does nothing."""
