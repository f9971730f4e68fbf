"""A complete running Strata, with an HTTP port for a page of a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from strata.standalone.ports import pick_port
from whole_system import Shape, System, open_system


@pytest.fixture(scope="package")
def page_port() -> int:
    """Port of the page that may call the HTTP port."""
    return pick_port()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running_system(databases: Any, vectors: Any, page_port: int) -> AsyncIterator[System]:
    origin = f"http://127.0.0.1:{page_port}"
    async with open_system(
        databases, vectors, Shape.IN_PROCESS, http_port=pick_port(), http_origins=(origin,)
    ) as system:
        yield system
