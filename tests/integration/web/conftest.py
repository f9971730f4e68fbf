"""A server for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from web_servers import RawServer, raw_server


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RawServer]:
    """A server with the answers that the test sets."""
    async with raw_server() as raw:
        yield raw
