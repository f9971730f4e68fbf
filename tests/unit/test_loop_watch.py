"""The measurement that other tests use to find callbacks that block the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from loop_watch import assert_never_held, watch_loop


async def _block_for_a_tenth_of_a_second() -> None:
    await asyncio.sleep(0)
    ends = time.thread_time() + 0.1
    while time.thread_time() < ends:
        pass


async def test_a_callback_that_blocks_the_loop_is_found() -> None:
    with pytest.raises(AssertionError, match="_block_for_a_tenth_of_a_second"):
        await assert_never_held(_block_for_a_tenth_of_a_second, milliseconds=10.0)


async def test_short_callbacks_are_not_reported() -> None:
    await assert_never_held(lambda: asyncio.sleep(0.01), milliseconds=10.0)


def test_a_loop_whose_callbacks_cannot_be_measured_is_refused() -> None:
    async def watch() -> None:
        async with watch_loop():
            pass

    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(AssertionError),
    ):
        runner.run(watch())
