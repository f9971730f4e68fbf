"""Resources that the services of one process share."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from strata.shared.shared_resources import SharedResources


class Opened:
    """Counts how often a thing was opened and closed."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    async def open(self, stack: AsyncExitStack) -> Opened:
        self.opened += 1
        await asyncio.sleep(0)
        stack.callback(self._close)
        return self

    def _close(self) -> None:
        self.closed += 1


async def test_a_resource_is_opened_once_and_closed_by_its_last_user() -> None:
    shared_resources, thing = SharedResources(), Opened()
    async with AsyncExitStack() as first:
        async with AsyncExitStack() as second:
            got = await asyncio.gather(
                shared_resources.share("model", thing.open, first),
                shared_resources.share("model", thing.open, second),
            )
            assert list(got) == [thing, thing]
        assert (thing.opened, thing.closed) == (1, 0)
    assert (thing.opened, thing.closed) == (1, 1)


async def test_a_resource_is_opened_again_after_its_last_user_has_closed() -> None:
    shared_resources, thing = SharedResources(), Opened()
    for _ in range(2):
        async with AsyncExitStack() as stack:
            await shared_resources.share("model", thing.open, stack)
    assert (thing.opened, thing.closed) == (2, 2)


async def test_another_key_is_another_resource() -> None:
    shared_resources, one, other = SharedResources(), Opened(), Opened()
    async with AsyncExitStack() as stack:
        assert await shared_resources.share(("model", 1), one.open, stack) is one
        assert await shared_resources.share(("model", 2), other.open, stack) is other


async def test_a_failed_opening_is_retried_by_the_next_user() -> None:
    shared_resources, thing = SharedResources(), Opened()

    async def fail(stack: AsyncExitStack) -> Opened:
        await thing.open(stack)
        raise OSError("no weights")

    async with AsyncExitStack() as stack:
        with pytest.raises(OSError, match="no weights"):
            await shared_resources.share("model", fail, stack)
        assert (thing.opened, thing.closed) == (1, 1)
        assert await shared_resources.share("model", thing.open, stack) is thing
    assert (thing.opened, thing.closed) == (2, 2)
