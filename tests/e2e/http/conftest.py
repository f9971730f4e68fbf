"""A whole running Strata with an HTTP port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest_asyncio

from strata.standalone.ports import pick_port
from whole_system import Shape, System, open_system

PAGE = "https://app.example"
"""Origin of the web page that may call the port."""


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running_system(databases: Any, vectors: Any) -> AsyncIterator[System]:
    async with open_system(
        databases, vectors, Shape.IN_PROCESS, http_port=pick_port(), http_origins=(PAGE,)
    ) as system:
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def http(system: System) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the port, with an API key."""
    headers = {"authorization": f"Bearer {system.key}"}
    async with httpx2.AsyncClient(
        base_url=system.http_url, headers=headers, timeout=60.0
    ) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def other_project_key(system: System) -> str:
    """An API key, with all scopes, of another project."""
    return await system.key_of_other_project()
