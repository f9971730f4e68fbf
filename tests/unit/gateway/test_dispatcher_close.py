"""A dispatcher that is woken at the moment of its cancellation ends."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from strata.gateway.runs.dispatch.dispatcher import Dispatcher
from strata.shared.clock import SystemClock


class QuietDispatcher(Dispatcher):
    """A dispatcher that finds no queued run."""

    async def _claim(self) -> None:
        pass


@pytest.mark.parametrize("steps", range(5))
async def test_a_dispatcher_that_is_woken_while_it_is_cancelled_ends(steps: int) -> None:
    nothing = cast("Any", None)
    dispatcher = QuietDispatcher(
        nothing,
        nothing,
        nothing,
        nothing,
        SystemClock(),
        owner="gateway-1",
    )
    task = asyncio.create_task(dispatcher.take_over())
    await asyncio.sleep(0.01)
    dispatcher.look()
    # After this many iterations of the event loop the dispatcher may be at any point of its loop.
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=10)
    task.cancel()
    assert done == {task}
