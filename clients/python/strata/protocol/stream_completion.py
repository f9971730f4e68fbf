"""Lets a streaming call end normally after its reader has read the last response it needs."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

_LONGEST_S = 5.0

_ending: set[asyncio.Task[None]] = set()


def complete_in_background(call: Any) -> None:
    """Waits in the background until the server ends a call; returns at once.

    Use it when the client has the last response of a stream. If the client cancelled the call
    instead, the server would be interrupted in its last step and would log and count a success
    as CANCELLED. A call that the server does not end within five seconds is cancelled.

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
