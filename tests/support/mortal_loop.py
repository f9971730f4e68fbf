"""The real agent loop in the process of a test; its death can be simulated at a chosen event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from chat_messages import user_message
from doubles.script import Call
from inner_services import InnerServices
from strata.agent_loop.clients.archival import ArchivalClient
from strata.agent_loop.clients.core_memory import CoreMemoryClient
from strata.agent_loop.clients.recall import RecallClient
from strata.agent_loop.clients.tool_execution import ToolClient
from strata.agent_loop.convert.runs import run_from_proto
from strata.agent_loop.domain.run.events import RunEvent, RunFinished
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import CallStarted, ToolBatch, ToolEvent, ToolSet
from strata.agent_loop.loop.turn import Turn
from strata.agent_loop.loop.turn_ports import Ports
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.provider import ModelProvider
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.agent_loop.models.tokens import TokenEstimator
from strata.agent_loop.store import PostgresAgentStore, PostgresJournal
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.shared.clock import SystemClock
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.stop_reasons import StopReason


class Died(BaseException):
    """Simulates the death of the process of the loop."""


class MortalTools:
    """The real tool executor; the process can die at a chosen event.

    Attributes:
        at: Called with each event before the loop receives it; may raise or wait.
    """

    def __init__(self, inner: ToolClient) -> None:
        self.at: Callable[[ToolEvent], object] = lambda _event: None
        self.pause: asyncio.Event | None = None
        self._inner = inner

    async def resolve(
        self,
        names: Sequence[str],
        *,
        skip_missing: bool = False,
        run_id: str = "",
        max_bytes: int = 0,
    ) -> ToolSet:
        return await self._inner.resolve(
            names, skip_missing=skip_missing, run_id=run_id, max_bytes=max_bytes
        )

    async def execute(self, batch: ToolBatch) -> AsyncGenerator[ToolEvent, None]:
        async for event in self._inner.execute(batch):
            self.at(event)
            if self.pause is not None:
                await self.pause.wait()
            yield event


class Sink:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    async def emit(self, event: RunEvent) -> None:
        self.events.append(event)

    @property
    def stop_reason(self) -> StopReason:
        last = self.events[-1]
        assert isinstance(last, RunFinished)
        return last.outcome.stop_reason


@dataclass
class Mortal:
    """An agent loop whose process can die."""

    ports: Ports
    tools: MortalTools

    def request(self, agent: agent_pb.Agent, text: str) -> RunRequest:
        return run_from_proto(
            turn_pb.ExecuteRunRequest(
                run_id=new_id("run"),
                attempt=1,
                agent_id=agent.id,
                conversation_id=agent.default_conversation_id,
                messages=[user_message(text)],
            )
        )

    async def run(self, request: RunRequest) -> Sink:
        sink = Sink()
        await Turn(self.ports, request, sink).run()
        return sink

    async def die(
        self, request: RunRequest, kind: type[ToolEvent] = CallStarted, number: int = 1
    ) -> None:
        """Runs a turn; its process dies at the given occurrence of an event of the tools."""
        count = 0

        def die(event: ToolEvent) -> None:
            nonlocal count
            count += isinstance(event, kind)
            if count == number:
                raise Died

        self.tools.at = die
        with pytest.raises(Died):
            await self.run(request)
        self.tools.at = lambda _event: None


@asynccontextmanager
async def open_mortal(services: InnerServices) -> AsyncIterator[Mortal]:
    """Opens the loop, with the real services behind it and the database of the agent loop."""
    database = Database(services.urls["agent_loop"].service_url)
    endpoints = [
        ModelEndpoint("test", "openai", services.model.openai_url, models=("test-model",)),
        ModelEndpoint("claude", "anthropic", services.model.anthropic_url, models=("test-model",)),
        ModelEndpoint(
            "blind",
            "openai",
            services.model.openai_url,
            models=("test-model",),
            context_window=8_000,
        ),
    ]
    tools = MortalTools(ToolClient(services.channel("tool_execution")))
    async with ModelFactory() as factory:
        yield Mortal(
            Ports(
                agents=PostgresAgentStore(database),
                memory=CoreMemoryClient(services.channel("core_memory")),
                recall=RecallClient(services.channel("recall")),
                tools=tools,
                archival=ArchivalClient(services.channel("archival")),
                journal=PostgresJournal(database),
                models=ModelProvider(ModelRegistry(endpoints), factory),
                tokens=TokenEstimator(),
                clock=SystemClock(),
            ),
            tools,
        )
    await database.close()


async def human(services: InnerServices, agent: agent_pb.Agent) -> str:
    listed = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent.id))
    return next(block.value for block in listed.blocks if block.label == "human")


def remember(text: str, **more: Any) -> Call:
    return Call("memory_insert", {"label": "human", "new_str": text, **more})
