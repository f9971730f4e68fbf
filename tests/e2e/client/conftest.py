"""Fixtures: a complete running Strata, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from strata.client import Client, connect
from whole_system import Shape, System, open_system


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running_system(databases: Any, vectors: Any) -> AsyncIterator[System]:
    async with open_system(databases, vectors, Shape.IN_PROCESS) as system:
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def client(system: System) -> AsyncIterator[Client]:
    """A client with every scope."""
    async with connect(system.address, api_key=system.key) as client:
        yield client
