"""Waiting until other tasks, threads or processes have brought something about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def eventually(
    condition: Callable[[], Any], seconds: float = 20.0, interval: float = 0.02
) -> Any:
    """Evaluates a condition until it holds, and returns its value.

    Args:
        condition: A function or a coroutine function.
        seconds: How long to wait at most.
        interval: Seconds between two evaluations.

    Raises:
        TimeoutError: The condition has not held in time.
    """
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(interval)


async def settle() -> None:
    """Lets all tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)
