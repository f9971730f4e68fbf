"""The clock as an injected dependency, so that tests can set the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock and monotonic time."""

    def now(self) -> datetime:
        """Returns the wall-clock time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Returns monotonic seconds; only differences are meaningful."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """Returns the wall-clock time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Returns `time.monotonic`."""
        return time.monotonic()


class ManualClock:
    """A clock for tests that changes only when it is set or advanced."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if start.tzinfo is None:
            raise ValueError("the start of a clock needs a time zone")
        self._now = start.astimezone(UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        """Returns the time that was set."""
        return self._now

    def monotonic(self) -> float:
        """Returns the seconds by which the clock was advanced."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Moves both times forward.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError("time does not run backwards; use step for the wall clock")
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Sets the wall clock forward or back, as an NTP correction does."""
        self._now += timedelta(seconds=seconds)
