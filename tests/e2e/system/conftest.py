"""Fixtures: the whole system in this process, and in child processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
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


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def lives(
    session_folder: Path, prepared_folder: Path
) -> AsyncIterator[Mapping[Shape, LiveSystem]]:
    """A Strata of each shape, run in child processes and not started yet, for this folder."""
    async with AsyncExitStack() as stack:
        lives = {}
        for shape in Shape:
            model = await stack.enter_async_context(ModelServer())
            data = session_folder / f"system-{shape.value}"
            copy_prepared_folder(prepared_folder, data)
            keys = {
                "OPENAI_API_KEY": "provider-key-of-these-tests",
                "ANTHROPIC_API_KEY": "another-key-of-these-tests",
                "ANTHROPIC_BASE_URL": model.anthropic_url,
            }
            split = shape is Shape.SOCKETS
            if split:
                # These are for clients and for `strata migrate`; no process of Strata gets them.
                keys["STRATA_API_KEY"] = "client-key-of-these-tests"
                keys["STRATA_DATABASE_ADMIN_URL"] = "postgresql://admin-of-these-tests"
            strata = LiveSystem(data, model, split=split, environment=keys)
            lives[shape] = strata
            stack.push_async_callback(strata.close)
        yield lives


async def _running(strata: LiveSystem) -> AsyncIterator[LiveSystem]:
    strata.model.reset()
    if not strata.runs:
        await strata.start()
    yield strata
    if strata.runs:
        # A failed test may have left a running turn, which would call the model in the next test.
        system = strata.connect()
        await system.end_open_runs()
        await system.channel.close()
    assert strata.model.violations == []


@pytest_asyncio.fixture(loop_scope="session")
async def single_live(lives: Mapping[Shape, LiveSystem]) -> AsyncIterator[LiveSystem]:
    """A running `strata up` that tests share; each test creates its own agents."""
    async for strata in _running(lives[Shape.IN_PROCESS]):
        yield strata


@pytest_asyncio.fixture(loop_scope="session")
async def split_live(lives: Mapping[Shape, LiveSystem]) -> AsyncIterator[LiveSystem]:
    """The same with a process for each service."""
    async for strata in _running(lives[Shape.SOCKETS]):
        yield strata


@pytest_asyncio.fixture
async def live(open_folder: Path, prepared_folder: Path) -> AsyncIterator[LiveSystem]:
    """`strata up` on a folder without agents, not started yet, with a model of its own."""
    copy_prepared_folder(prepared_folder, open_folder / "data")
    async with ModelServer() as model:
        strata = LiveSystem(open_folder / "data", model)
        try:
            yield strata
        finally:
            await strata.close()
    assert model.violations == []
