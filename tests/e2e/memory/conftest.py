"""The command line in front of a whole running Strata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.cli.main import app
from whole_system import Shape, World, forget, open_world


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Coroutine[Any, Any, Outcome]]


@pytest_asyncio.fixture(scope="package", loop_scope="session", name="system")
async def _system(databases: Any, vectors: Any) -> AsyncIterator[World]:
    async with open_world(databases, vectors, Shape.IN_PROCESS) as world:
        yield world


@pytest.fixture
def world(system: World) -> World:
    """The running system."""
    forget(system.model)
    return system


@pytest_asyncio.fixture(loop_scope="session")
async def ann(world: World) -> agent_pb.Agent:
    """A new agent with the blocks "human" and "persona"."""
    return await world.make_agent()


@pytest.fixture
def place(world: World) -> Mapping[str, str]:
    """Where it is, as environment of a command."""
    return {"STRATA_ADDRESS": world.address, "STRATA_API_KEY": world.key}


@pytest.fixture
def strata(place: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in a thread with an event loop of its own, without a terminal."""
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    runner = CliRunner()

    async def run(*arguments: str, typed: str | None = None) -> Outcome:
        result = await asyncio.to_thread(
            runner.invoke, app, list(arguments), input=typed, catch_exceptions=False
        )
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run
