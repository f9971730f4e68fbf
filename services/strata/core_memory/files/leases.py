"""Working on something for as long as it is ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

# So many times a lease is renewed before it would run out.
_RENEWALS = 3


class LeaseLostError(Exception):
    """What was worked on is gone, has changed, or was taken over by somebody else."""


async def while_held(
    work: Coroutine[Any, Any, None], hold: Callable[[], Awaitable[bool]], lease: float
) -> None:
    """Runs `work` and renews its lease meanwhile.

    Args:
        work: What to do; cancelled when the lease is lost.
        hold: Renews the lease; False if it is lost.
        lease: Its length, seconds.

    Raises:
        LeaseLostError: The lease is lost.
    """
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=lease / _RENEWALS))[0]:
            if not await hold():
                raise LeaseLostError
        task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
