"""The services behind the gateway as fixtures: over sockets and in process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from inner_services import World, open_world
from web_servers import RawServer, raw_server
from whole_system import forget


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def pages() -> AsyncIterator[RawServer]:
    """A web site that the agents of `services` may read."""
    async with raw_server() as server:
        yield server


@pytest_asyncio.fixture(
    scope="package", loop_scope="session", params=["inprocess", "sockets"], name="services"
)
async def _services(
    request: pytest.FixtureRequest, databases: Any, vectors: Any, pages: RawServer
) -> AsyncIterator[World]:
    web = {"web_private_networks": ("127.0.0.0/8",), "web_ports": (pages.port,)}
    async for opened in open_world(databases, vectors, request.param, **web):
        yield opened


@pytest.fixture
def world(services: World) -> Iterator[World]:
    """The services, signed in to a new project; the model must never have been asked wrongly."""
    forget(services.model)
    with services.signed_in():
        yield services
    assert services.model.violations == []
