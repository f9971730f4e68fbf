"""The services behind the gateway as fixtures: over sockets and in process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from inner_services import InnerServices, open_inner_services
from mortal_loop import Mortal, open_mortal
from web_servers import RawServer, raw_server


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def pages() -> AsyncIterator[RawServer]:
    """A web site that the agents of `services` may read."""
    async with raw_server() as server:
        yield server


@pytest_asyncio.fixture(scope="package", loop_scope="session", params=["inprocess", "sockets"])
async def running_services(
    request: pytest.FixtureRequest, databases: Any, vectors: Any, pages: RawServer
) -> AsyncIterator[InnerServices]:
    web = {"web_private_networks": ("127.0.0.0/8",), "web_ports": (pages.port,)}
    async with open_inner_services(databases, vectors, request.param, **web) as opened:
        yield opened


@pytest.fixture
def services(running_services: InnerServices) -> Iterator[InnerServices]:
    """The services, signed in to a new project; the model fails the test at invalid requests."""
    running_services.model.reset()
    with running_services.signed_in():
        yield running_services
    assert running_services.model.violations == []


@pytest_asyncio.fixture(loop_scope="session")
async def mortal(services: InnerServices) -> AsyncIterator[Mortal]:
    """An agent loop that can be killed at chosen events."""
    async with open_mortal(services) as mortal:
        yield mortal
