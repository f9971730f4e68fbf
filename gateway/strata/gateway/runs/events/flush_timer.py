"""A timer that starts a write of events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class FlushTimer:
    """Calls a function in a task, at the earliest time for which it was scheduled.

    The function is an argument of `schedule`, so that the timer of a finished run does not refer to
    the run: the run is freed without a garbage collection.
    """

    def __init__(self) -> None:
        # uvloop returns a handle without `when()` if the time has come before its call begins.
        self._timer: asyncio.Handle | None = None
        self._when = 0.0
        # The event loop has only weak references to tasks.
        self._task: asyncio.Task[None] | None = None

    def schedule(self, delay: float, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Schedules a call after some seconds, unless one is scheduled for an earlier time."""
        loop = asyncio.get_running_loop()
        when = loop.time() + delay
        if self._timer is not None:
            if self._when <= when:
                return
            self._timer.cancel()
        self._timer, self._when = loop.call_at(when, self._start, flush), when

    def stop(self) -> None:
        """Cancels the scheduled call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(flush())
