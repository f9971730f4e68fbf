"""Runs work under a lease, and renews the lease until the work ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

# Renewals within the length of a lease.
_RENEWALS = 3


class LeaseLostError(Exception):
    """The claimed item was deleted, changed, or taken over by another worker."""


async def while_held(
    work: Coroutine[Any, Any, None], hold: Callable[[], Awaitable[bool]], lease: float
) -> None:
    """Runs `work` and renews its lease until it ends.

    Args:
        work: The work; cancelled when the lease is lost.
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
