"""Finishing what must be finished although the turn is being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from strata.shared import context


async def shielded(work: Coroutine[Any, Any, None], *, seconds: float) -> None:
    """Runs `work` to its end, whatever cancellations come meanwhile; the caller re-raises.

    The deadline of the call being served may be what has passed, so `work` gets its own.

    Args:
        work: What must be done.
        seconds: Its limit; after that it is given up.

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
