"""The whole system as a fixture, in both shapes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from whole_system import Shape, World, forget, open_world


@pytest_asyncio.fixture(scope="package", loop_scope="session", params=list(Shape), name="system")
async def _system(
    request: pytest.FixtureRequest, databases: Any, vectors: Any
) -> AsyncIterator[World]:
    async with open_world(databases, vectors, request.param) as world:
        yield world


@pytest.fixture
def world(system: World) -> Iterator[World]:
    """The running system; the model must have been asked nothing that a provider refuses."""
    forget(system.model)
    yield system
    assert system.model.violations == []
