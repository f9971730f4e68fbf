"""The world of `world.py` as fixtures: over sockets and in process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from integration.agent_loop.world import World, open_world
from world import forget


@pytest_asyncio.fixture(
    scope="package", loop_scope="session", params=["inprocess", "sockets"], name="rooms"
)
async def _rooms(
    request: pytest.FixtureRequest, databases: Any, vectors: Any
) -> AsyncIterator[World]:
    async for each in open_world(databases, vectors, request.param):
        yield each


@pytest.fixture
def world(rooms: World) -> Iterator[World]:
    """The rooms, signed in to a new project; the model must never have been asked wrongly."""
    forget(rooms.model)
    with rooms.signed_in():
        yield rooms
    assert rooms.model.violations == []
