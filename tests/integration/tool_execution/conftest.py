"""The tool executor with the real memory services, and an agent whose tools are run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from inner_services import InnerServices, open_inner_services
from mcp_support import Mcp, open_folder
from mortal_loop import Mortal, open_mortal
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as pb_grpc
from strata.api.tool_execution.v1.tool_service_pb2_grpc import ToolServiceStub
from strata.shared.ids import new_id
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS


class Tools:
    """Runs tools for an agent, as the loop does."""

    def __init__(self, services: InnerServices, agent: agent_pb.Agent) -> None:
        self.services = services
        self.agent = agent
        self.run_id = new_id("run")
        self.message_id = new_id("message")
        self.timezone = "UTC"
        self._stub = pb_grpc.ExecutionServiceStub(services.channel("tool_execution"))
        self._count = 0

    async def run(
        self,
        *calls: tuple[str, Mapping[str, Any]],
        seen: Mapping[str, int] | None = None,
        agent_type: str = "",
        keys: list[str] | None = None,
        own: Collection[str] = (),
        taint: Collection[Any] = (),
    ) -> list[pb.FinishedCall]:
        """Runs the calls of one reply; returns how they ended, in their order."""
        self._count += 1
        names = [f"call-{self._count}-{number}" for number in range(len(calls))]
        keys = keys or [f"{self.run_id}/{name}" for name in names]
        request = pb.ExecuteToolsRequest(
            agent_id=self.agent.id,
            conversation_id=self.agent.default_conversation_id,
            run_id=self.run_id,
            step_id="step-1",
            message_id=self.message_id,
            model="test/test-model",
            timezone=self.timezone,
            calls=[
                pb.ToolCall(
                    tool_call_id=name,
                    name=tool,
                    arguments=json.dumps(arguments),
                    idempotency_key=key,
                )
                for name, key, (tool, arguments) in zip(names, keys, calls, strict=True)
            ],
            allowed_tools=sorted({*BUILTIN_TOOLS, *own}),
            agent_type=agent_type,
            block_revisions=seen,
            taint=taint,
        )
        ended = {}
        async for response in self._stub.ExecuteTools(request):
            if response.HasField("finished"):
                ended[response.finished.tool_return.tool_call_id] = response.finished
        return [ended[name] for name in names]

    async def call(self, tool: str, **arguments: Any) -> str:
        """Runs one call that must succeed; returns the text for the model."""
        (ended,) = await self.run((tool, arguments))
        packed = json.loads(ended.tool_return.content)
        assert packed["status"] == "OK", packed
        return str(packed["message"])

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Runs one call that must fail; returns the text for the model."""
        (ended,) = await self.run((tool, arguments))
        return refusal(ended)

    async def block(self, label: str) -> block_pb.Block:
        """Returns a block of the agent."""
        request = block_pb.GetBlockRequest(agent_id=self.agent.id, label=label)
        block: block_pb.Block = (await self.services.blocks.GetBlock(request)).block
        return block

    async def labels(self) -> set[str]:
        """Returns the labels of the agent's blocks."""
        request = block_pb.ListBlocksRequest(agent_id=self.agent.id)
        return {block.label for block in (await self.services.blocks.ListBlocks(request)).blocks}

    async def write(self, label: str, value: str) -> block_pb.Block:
        """Changes a block as another editor does."""
        block = await self.block(label)
        request = block_pb.UpdateBlockRequest(block_id=block.id, value=value)
        changed: block_pb.Block = (await self.services.blocks.UpdateBlock(request)).block
        return changed

    async def versions(self, label: str) -> list[block_pb.BlockVersion]:
        """Returns the versions of a block, newest first."""
        block = await self.block(label)
        request = block_pb.ListBlockVersionsRequest(block_id=block.id)
        return list((await self.services.blocks.ListBlockVersions(request)).versions)


def refusal(ended: pb.FinishedCall) -> str:
    """Returns the error of a failed call for the model."""
    packed = json.loads(ended.tool_return.content)
    assert packed["status"] == "Failed", packed
    assert not ended.memory_edits
    return str(packed["message"])


class UnusedSandbox:
    """A sandbox that fails the test if it is used."""

    isolation: Any = None

    async def run(self, run: Any) -> Any:
        pytest.fail("the call was run")

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(scope="package")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that replaces the package index of the services."""
    return tmp_path_factory.mktemp("wheels")


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running_services(
    databases: Any, vectors: Any, wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[InnerServices]:
    packages = tmp_path_factory.mktemp("services") / "packages"
    settings = {"packages_path": packages, "packages_wheels": wheels}
    async with open_inner_services(databases, vectors, "inprocess", **settings) as services:
        yield services


@pytest.fixture
def services(running_services: InnerServices) -> Iterator[InnerServices]:
    """The services, signed in to a new project."""
    with running_services.signed_in():
        yield running_services


@pytest.fixture
def registry(services: InnerServices) -> ToolServiceStub:
    """The tools of the project."""
    return ToolServiceStub(services.channel("tool_execution"))


@pytest_asyncio.fixture(loop_scope="session")
async def tools(services: InnerServices) -> Tools:
    """The tools of an agent with the blocks "human" (two lines) and "rules" (read-only)."""
    blocks = [
        block_pb.NewBlock(label="human", value="Name: Ada\nCity: Graz", limit=3_000),
        block_pb.NewBlock(label="rules", value="Be kind.", read_only=True),
    ]
    return Tools(services, await services.make_agent(blocks=blocks))


@pytest_asyncio.fixture(loop_scope="session")
async def mcp(services: InnerServices) -> AsyncIterator[Mcp]:
    """A project whose MCP servers are removed after the test."""
    with open_folder() as folder:
        async with Mcp(services, folder) as mcp:
            yield mcp


@pytest_asyncio.fixture(loop_scope="session")
async def mortal(services: InnerServices) -> AsyncIterator[Mortal]:
    """An agent loop that can be killed at chosen events."""
    async with open_mortal(services) as mortal:
        yield mortal
