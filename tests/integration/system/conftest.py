"""The whole system as a fixture, in both shapes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from whole_system import Shape, System, open_system


@pytest_asyncio.fixture(scope="package", loop_scope="session", params=list(Shape))
async def running_system(
    request: pytest.FixtureRequest, databases: Any, vectors: Any
) -> AsyncIterator[System]:
    async with open_system(databases, vectors, request.param) as system:
        yield system
