"""Work that a service repeats periodically in the background."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from strata.protocol.errors import StrataError
from strata.shared.logs import get_logger

_MOST_DOUBLINGS = 3

_log = get_logger(__name__)


class IdlePause:
    """The pause between two polls; it doubles while there is no work, to eight times at most.

    For work that wakes its own process, so that a poll finds only what another process or a crash
    has left. An idle server then makes few queries.

    Args:
        shortest_s: The pause after work, in seconds.
    """

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self._polls_without_work = 0

    def note(self, worked: bool) -> None:
        """Records whether there was work, or a reason to expect some."""
        self._polls_without_work = 0 if worked else self._polls_without_work + 1

    @property
    def seconds(self) -> float:
        """Seconds until the next poll."""
        doublings = min(max(self._polls_without_work - 1, 0), _MOST_DOUBLINGS)
        return self._shortest_s * float(1 << doublings)

    async def wait(self, wake: asyncio.Event) -> None:
        """Waits for the next poll, or until the event is set, which counts as work."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                await wake.wait()
                self.note(worked=True)


async def keep_working(
    work: Callable[[], Awaitable[object]], wake: asyncio.Event, problem: str
) -> None:
    """Calls a function each time that an event is set, until it is cancelled.

    Args:
        work: Does the work that waits.
        wake: Signals that there may be work; it is cleared before each call.
        problem: The logged text if a call raises a `StrataError`, after which it waits again.
    """
    while True:
        await wake.wait()
        wake.clear()
        try:
            await work()
        except StrataError as error:
            _log.warning(problem, error=repr(error))


async def keep_polling(poll: Callable[[], Awaitable[object]], every_s: float, problem: str) -> None:
    """Calls a function periodically until it is cancelled.

    The pauses are random, so that replicas do not work at the same moment.

    Args:
        poll: Does the work once.
        every_s: Mean seconds between two calls.
        problem: The logged text if a call raises a `StrataError`, after which polling continues.
    """
    while True:
        try:
            await poll()
        except StrataError as error:
            _log.warning(problem, error=repr(error))
        await asyncio.sleep(every_s * random.uniform(0.8, 1.2))  # noqa: S311
