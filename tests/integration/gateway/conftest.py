"""Scripted services with a gateway in front of them: both transports, or sockets only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from integration.gateway.scripted_services import World, open_world


@pytest_asyncio.fixture(params=["inprocess", "socket"])
async def world(request: pytest.FixtureRequest, databases: Any) -> AsyncIterator[World]:
    async for opened in open_world(databases, request.param):
        yield opened


@pytest_asyncio.fixture
async def network_world(databases: Any) -> AsyncIterator[World]:
    async for opened in open_world(databases, "socket"):
        yield opened
