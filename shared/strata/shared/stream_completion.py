"""The end of a stream whose last message is known by what it says."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

_LONGEST_S = 5.0

_ending: set[asyncio.Task[None]] = set()


def complete_in_background(call: Any) -> None:
    """Lets the server end a call of which the client has the last message; returns at once.

    A client that cancels it, or drops it, cuts the server off in its last step: the server
    then logs and counts a success as CANCELLED. A server that does not end the call within
    five seconds has it cancelled.

    Args:
        call: A call with a stream of responses, none of which is being read.
    """
    if call.done():
        return
    task = asyncio.get_running_loop().create_task(_end(call), context=contextvars.Context())
    _ending.add(task)
    task.add_done_callback(_ending.discard)


async def _end(call: Any) -> None:
    try:
        async with asyncio.timeout(_LONGEST_S):
            await call.code()
    except TimeoutError:
        pass
    finally:
        # Does nothing to a call that has ended.
        call.cancel()
