"""Scripted services with a gateway in front of them: both transports, or sockets only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from integration.gateway.scripted_services import ScriptedServices, open_services


@pytest_asyncio.fixture(params=["inprocess", "socket"])
async def services(
    request: pytest.FixtureRequest, databases: Any
) -> AsyncIterator[ScriptedServices]:
    async with open_services(databases, request.param) as opened:
        yield opened


@pytest_asyncio.fixture
async def socket_services(databases: Any) -> AsyncIterator[ScriptedServices]:
    async with open_services(databases, "socket") as opened:
        yield opened
