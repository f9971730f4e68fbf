"""Pauses of streamed replies, in which other tasks run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from strata.shared.fair_slots import FairSlots, slots_of_short_work
from strata.shared.project_use import USE_OF_PROCESS, ProjectUse

_STREAMS_AT_ONCE = 64
# Readers do not notice it, and a model that writes a hundred pieces a second has sent four.
_MORE_S = 0.04


class StreamPauses:
    """The pauses of the streams of a process, shared fairly between projects.

    A stream pauses after each part of some milliseconds. With a pause only, the next part of every
    other task would wait for a part of each stream. A stream therefore holds a slot for its pause:
    beside other projects, few streams of one project go on at a time.

    Args:
        use: The use of the processors by projects.
        now: A monotonic clock, in seconds.
        sleep: Waits for some seconds.

    Attributes:
        now: As the argument.
    """

    def __init__(
        self,
        use: ProjectUse = USE_OF_PROCESS,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.now = now
        self._use = use
        self._sleep = sleep
        self._slots: FairSlots = slots_of_short_work(_STREAMS_AT_ONCE, "streamed replies", use)

    async def pause(self) -> None:
        """Lets other tasks run once, and waits while other projects work."""
        async with self._slots.slot():
            await self._sleep(0)

    async def wait_for_more(self) -> bool:
        """Waits while further pieces of a slow stream arrive, unless processors are idle.

        Pieces that are read together cost less, so that more is left for other work.

        Returns:
            Whether it has waited.
        """
        if self._use.level > 1:
            return False
        await self._sleep(_MORE_S)
        return True
