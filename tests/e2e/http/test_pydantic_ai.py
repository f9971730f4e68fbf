"""Pydantic AI, an agent framework, with agents as OpenAI models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import openai
import pytest
import pytest_asyncio

from doubles.script import ModelCall, Reply, call, say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import tool_pb2
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_api
from whole_system import System

if TYPE_CHECKING:
    from pydantic_ai import Agent

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOL = "air_temperature"


class Framework:
    """Creates agents of the framework; only base URL, key and model are those of Strata."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client

    def agent(self, agent: agent_pb.Agent, user: str = "") -> Agent[None, str]:
        # The import takes 2 s, which not every process that collects the tests has to spend.
        from pydantic_ai import Agent, ModelSettings  # noqa: PLC0415
        from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
        from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

        settings = ModelSettings(extra_body={"user": user}) if user else None
        model = OpenAIChatModel(agent.name, provider=OpenAIProvider(openai_client=self._client))
        return Agent(model, model_settings=settings)


@pytest_asyncio.fixture(loop_scope="session")
async def framework(system: System) -> AsyncIterator[Framework]:
    async with openai.AsyncOpenAI(base_url=f"{system.http_url}/v1", api_key=system.key) as client:
        yield Framework(client)


async def test_framework_chats_with_memory(system: System, framework: Framework) -> None:
    def reply(request: ModelCall) -> Reply:
        return say(f"{len(request.messages)} {'Ada' in request.system}")

    system.model.respond(reply)
    agent = await system.make_agent(blocks=[pb.NewBlock(label="human", value="Name: Ada")])
    chat = framework.agent(agent, "ann")
    first = await chat.run("Hello.")
    second = await chat.run("Again.", message_history=first.all_messages())
    # A client without the history, such as a restarted program.
    third = await framework.agent(agent, "ann").run("Once more.")
    assert [run.output for run in (first, second, third)] == ["2 True", "4 True", "6 True"]
    assert third.usage.output_tokens > 0


async def test_framework_streams_text(system: System, framework: Framework) -> None:
    # Pieces that arrive together are sent as one.
    system.model.script(say("A reply of several pieces.", pause=0.02))
    agent = await system.make_agent()
    async with framework.agent(agent).run_stream("Hello.") as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == "A reply of several pieces."
    assert len(pieces) > 1


@pytest.mark.parametrize("stream", [False, True])
async def test_framework_runs_its_tool(system: System, framework: Framework, stream: bool) -> None:
    await system.tools.UpsertTool(
        tool_api.UpsertToolRequest(
            type=tool_pb2.TOOL_TYPE_CLIENT,
            name=TOOL,
            description="Measures the temperature of a place.",
            parameters_json=json.dumps(
                {"type": "object", "properties": {"place": {"type": "string"}}}
            ),
        )
    )
    agent = await system.make_agent(tools=[TOOL])
    system.model.script(call(TOOL, {"place": "kitchen"}))
    system.model.respond(lambda request: say(json.loads(request.answered[-1])["message"]))
    chat = framework.agent(agent)
    places = []

    @chat.tool_plain(name=TOOL)
    def measure(place: str) -> str:
        places.append(place)
        return "21 degrees"

    if stream:
        async with chat.run_stream("How warm is the kitchen?") as run:
            output = await run.get_output()
    else:
        output = (await chat.run("How warm is the kitchen?")).output
    assert (places, output) == (["kitchen"], "21 degrees")
