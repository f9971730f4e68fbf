"""Fixtures: a complete running Strata, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from strata.client import Client, connect
from whole_system import Shape, World, forget, open_world


@pytest_asyncio.fixture(scope="package", loop_scope="session", name="system")
async def _system(databases: Any, vectors: Any) -> AsyncIterator[World]:
    async with open_world(databases, vectors, Shape.IN_PROCESS) as world:
        yield world


@pytest.fixture
def world(system: World) -> Iterator[World]:
    """The running system; the model must have been asked nothing that a provider refuses."""
    forget(system.model)
    yield system
    assert system.model.violations == []


@pytest_asyncio.fixture(loop_scope="session")
async def client(world: World) -> AsyncIterator[Client]:
    """A client with every scope."""
    async with connect(world.address, api_key=world.key) as client:
        yield client
