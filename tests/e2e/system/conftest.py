"""The whole system in this process, and as processes of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from doubles.model_server import ModelServer
from live import LiveSystem
from prepared_folder import copy_prepared_folder
from whole_system import Shape, System, open_system


@pytest_asyncio.fixture(scope="package", loop_scope="session", params=list(Shape))
async def running_system(
    request: pytest.FixtureRequest, databases: Any, vectors: Any
) -> AsyncIterator[System]:
    async with open_system(databases, vectors, request.param) as system:
        yield system


async def _live(folder: Path, prepared: Path, *, split: bool) -> AsyncIterator[LiveSystem]:
    copy_prepared_folder(prepared, folder / "data")
    async with ModelServer() as model:
        strata = LiveSystem(folder / "data", model, split=split)
        try:
            yield strata
        finally:
            await strata.close()
    assert model.violations == []


@pytest_asyncio.fixture
async def live(open_folder: Path, prepared_folder: Path) -> AsyncIterator[LiveSystem]:
    """`strata up` on a folder without agents, not started yet, with a model of its own."""
    async for strata in _live(open_folder, prepared_folder, split=False):
        yield strata


# Services in processes of their own are killed in tests/faults by the dozen.
@pytest_asyncio.fixture(params=["single", pytest.param("split", marks=pytest.mark.slow)])
async def either_live(
    request: pytest.FixtureRequest, open_folder: Path, prepared_folder: Path
) -> AsyncIterator[LiveSystem]:
    """Like `live`, once as one process and once with one process per service."""
    async for strata in _live(open_folder, prepared_folder, split=request.param == "split"):
        yield strata
