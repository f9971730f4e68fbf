"""The loop that takes waiting runs ends when it is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from strata.gateway.runs.dispatcher import Dispatcher
from strata.shared.clock import SystemClock


class EmptyStore:
    """A run store without runs."""

    def __init__(self) -> None:
        self.was_asked = asyncio.Event()

    async def claim(self, *_: Any, **__: Any) -> list[Any]:
        return []

    async def claim_memory_runs(self, *_: Any, **__: Any) -> list[Any]:
        self.was_asked.set()
        return []


async def test_loop_that_is_woken_and_cancelled_at_once_ends() -> None:
    store = EmptyStore()
    nothing = cast("Any", None)
    dispatcher = Dispatcher(
        cast("Any", store), nothing, nothing, nothing, SystemClock(), owner="gateway-1"
    )
    loop = asyncio.create_task(dispatcher.take_over())
    await store.was_asked.wait()
    await asyncio.sleep(0)
    # A run that ends while the gateway stops does both in one turn of the event loop.
    dispatcher.look()
    loop.cancel()
    done, _ = await asyncio.wait((loop,), timeout=5)
    assert done
    assert loop.cancelled()
