"""Servicers whose calls never end by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Endless:
    """Creates a servicer whose calls never end by themselves."""

    def __init__(self) -> None:
        self.waiting = 0
        self.cleaned_up = 0

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            self.cleaned_up += 1

    async def until_waiting(self, count: int) -> None:
        while self.waiting < count:
            await asyncio.sleep(0.01)

    def servicer(self, echo: Any) -> Any:
        endless = self

        class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
            async def Echo(self, request: Any, context: Any) -> Any:
                await endless._wait()

            async def Change(self, request: Any, context: Any) -> Any:
                async with asyncio.timeout(3000), asyncio.TaskGroup() as group:
                    group.create_task(endless._wait())

            async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
                yield request
                await endless._wait()

            async def Sum(self, requests: Any, context: Any) -> Any:
                async for _ in requests:
                    await endless._wait()

            async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
                async for request in requests:
                    yield request
                    await endless._wait()

        return Servicer()
