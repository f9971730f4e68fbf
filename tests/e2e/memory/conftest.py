"""The command line in front of a whole running Strata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from command_line import Run, run_command
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from whole_system import Shape, System, open_system


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running_system(databases: Any, vectors: Any) -> AsyncIterator[System]:
    async with open_system(databases, vectors, Shape.IN_PROCESS) as system:
        yield system


@pytest.fixture
def system(running_system: System) -> System:
    """The running system."""
    running_system.model.reset()
    return running_system


@pytest_asyncio.fixture(loop_scope="session")
async def ann(system: System) -> agent_pb.Agent:
    """A new agent with the blocks "human" and "persona"."""
    return await system.make_agent()


@pytest.fixture
def place(system: System) -> Mapping[str, str]:
    """The address and key of the system, as environment of a command."""
    return {"STRATA_ADDRESS": system.address, "STRATA_API_KEY": system.key}


@pytest.fixture
def strata(place: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command, connected to the system."""
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    return run_command
