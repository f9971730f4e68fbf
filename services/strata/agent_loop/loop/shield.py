"""Runs cleanup work to its end while the turn is being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from strata.shared import context

CLEANUP_S = 10.0
"""Maximum number of seconds in which an ending run stores and reports its last step."""


async def shielded(work: Coroutine[Any, Any, None], *, seconds: float) -> None:
    """Runs `work` to its end and ignores cancellations meanwhile; the caller re-raises its own.

    `work` gets its own deadline, since the deadline of the served call may have passed.

    Args:
        work: The coroutine to finish.
        seconds: Time limit, after which `work` is cancelled.

    Raises:
        TimeoutError: The limit passed.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    with context.use(replace(context.current(), deadline=deadline)):
        task = asyncio.create_task(_limited(work, seconds))
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
    task.result()


async def _limited(work: Coroutine[Any, Any, None], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await work
