"""Clocks that differ from that of the machine."""

from __future__ import annotations

from datetime import datetime, timedelta

from strata.shared.clock import SystemClock


class OffsetClock(SystemClock):
    """A clock whose time of day is ahead by a number of seconds; elapsed time is unchanged."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead = timedelta(seconds=ahead_s)

    def now(self) -> datetime:
        return super().now() + self._ahead
