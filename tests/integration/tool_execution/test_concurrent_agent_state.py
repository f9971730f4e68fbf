"""Custom tools with ``agent_state``: repeated calls, and blocks that change during the call."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inner_services import InnerServices
from integration.tool_execution.conftest import Tools
from integration.tool_execution.stateful_tools import START, make_block, put, ran, source
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.protocol.errors import PermissionDeniedError, Reason, UnavailableError
from strata.shared.context import current_project, use
from strata.tool_execution.custom.agent_memory import AgentBlocks, BlockMemory

pytestmark = pytest.mark.asyncio(loop_scope="session")

BOTH = (
    "memory.get_block('alpha').value = 'two'\nmemory.get_block('human').value = 'y'\nreturn 'done'"
)


async def repeated(tools: Tools) -> execution_pb.FinishedCall:
    """Runs a call with a fixed id and key, so that a second call is a repetition."""
    tools._count = 0
    (ended,) = await tools.run(("stateful", {}), own=["stateful"], keys=[f"{tools.run_id}/once"])
    return ended


def status(ended: execution_pb.FinishedCall) -> str:
    return str(json.loads(ended.tool_return.content)["status"])


async def test_a_repeated_call_stores_the_remaining_blocks(
    tools: Tools, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service died between two blocks; the first already has its new value."""
    await make_block(tools, tools.services.blocks, "alpha", value="one")
    await put(registry, source(BOTH))
    store = BlockMemory.store

    async def only_the_first(
        memory: BlockMemory, call: Any, caller: Any, before: Any, texts: Any, *more: Any
    ) -> None:
        await store(memory, call, caller, before, dict(sorted(texts.items())[:1]), *more)
        raise UnavailableError("died")

    with monkeypatch.context() as patched:
        patched.setattr(BlockMemory, "store", only_the_first)
        assert status(await repeated(tools)) == "Failed"
    assert (await tools.block("alpha")).value == "two"
    assert (await tools.block("human")).value == START

    ended = await repeated(tools)
    assert status(ended) == "OK", ended.tool_return.content
    assert [edit.label for edit in ended.memory_edits] == ["human"]
    assert (await tools.block("human")).value == "y"
    assert (await tools.block("alpha")).revision == 2


async def test_a_repeated_call_returns_the_edit_of_the_first_call(
    tools: Tools, registry: Any
) -> None:
    await put(registry, source("memory.get_block('human').value += '!'\nreturn 'done'"))
    first = await repeated(tools)
    # Another edit is made in between, so that the version that is looked for is not the newest one.
    await tools.write("human", f"{START}!\nAge: 36")
    again = await repeated(tools)
    assert status(again) == "OK", again.tool_return.content
    assert list(again.memory_edits) == list(first.memory_edits)
    assert (await tools.block("human")).value == f"{START}!\nAge: 36"


def late(tools: Tools, do: Callable[[block_pb.Block], Awaitable[object]]) -> Any:
    """Reads memory; afterwards another editor changes the block "human"."""
    read = BlockMemory.read

    async def read_and_be_late(memory: BlockMemory, agent_id: str) -> AgentBlocks:
        blocks = await read(memory, agent_id)
        await do(await tools.block("human"))
        return blocks

    return read_and_be_late


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_block_deleted_during_the_call_is_not_recreated(
    tools: Tools, registry: Any, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """Another block with its label is not overwritten either."""
    blocks = tools.services.blocks

    async def take_away(block: block_pb.Block) -> None:
        request = block_pb.DetachBlockRequest(agent_id=tools.agent.id, block_id=block.id)
        await blocks.DetachBlock(request)
        if replaced:
            await make_block(tools, blocks, "human", value="Somebody else")

    monkeypatch.setattr(BlockMemory, "read", late(tools, take_away))
    await put(registry, source("memory.get_block('human').value += '!'\nreturn 'done'"))
    ended, value, edits = await ran(tools)
    assert (ended, edits) == ("Failed", [])
    assert "'human'" in value
    assert "no longer has that label" in value
    assert ("human" in await tools.labels()) is replaced
    if replaced:
        assert (await tools.block("human")).value == "Somebody else"


async def test_dry_run_with_memory_needs_the_read_scope(
    tools: Tools, services: InnerServices, registry: Any
) -> None:
    """The method itself needs no more than "run", and its tool could return everything."""
    text = source("return memory.get_block('human').value")
    request = pb.RunToolRequest(source_code=text, agent_id=tools.agent.id)
    with use(services.keys.context(current_project(), scopes=["run"], principal="key-2")):
        with pytest.raises(PermissionDeniedError) as caught:
            await registry.RunTool(request)
        plain = pb.RunToolRequest(source_code="def f() -> int:\n    'Does.'\n    return 1")
        assert (await registry.RunTool(plain)).tool_return.content
    assert caught.value.reason is Reason.SCOPE_MISSING
    assert caught.value.metadata["scope"] == "read"
    assert START.splitlines()[0] in (await registry.RunTool(request)).tool_return.content
