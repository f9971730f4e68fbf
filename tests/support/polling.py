"""Waits for conditions that other tasks, threads or processes fulfil."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def eventually(
    condition: Callable[[], Any], seconds: float = 60.0, interval: float = 0.02
) -> Any:
    """Evaluates a condition until it holds, and returns its value.

    Args:
        condition: A function or a coroutine function.
        seconds: Maximum time to wait.
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


async def settle(rounds: int = 20) -> None:
    """Lets other tasks run for `rounds` iterations of the event loop."""
    for _ in range(rounds):
        await asyncio.sleep(0)
