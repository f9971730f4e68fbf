"""Other rooms as the gateway sees them: turns, which agents there are, versions of tools."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping

import grpc.aio

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.agent_loop.v1 import turn_service_pb2_grpc as turn_grpc
from strata.api.common.v1 import run_event_pb2
from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as execution_grpc
from strata.gateway.runs.convert import default_conversation
from strata.shared.clock import Clock


class GrpcTurnClient:
    """`TurnClient` over a channel to agent_loop."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = turn_grpc.TurnServiceStub(channel)

    async def execute(
        self, request: turn_pb.ExecuteRunRequest, *, seconds: float
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        """See `TurnClient.execute`; the stream is cancelled when the iteration is left."""
        call = self._stub.ExecuteRun(request, timeout=seconds)
        try:
            async for response in call:
                yield response.event
        finally:
            call.cancel()


class GrpcToolVersions:
    """Tells which versions of tools a project has now, over a channel to tool_execution."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = execution_grpc.ExecutionServiceStub(channel)

    async def versions(self, names: Iterable[str]) -> Mapping[str, str]:
        """Returns the versions of tools by name, without those that are not there (any more)."""
        request = execution_pb.ResolveToolsRequest(names=sorted(set(names)), skip_missing=True)
        response = await self._stub.ResolveTools(request)
        return {tool.name: tool.version for tool in response.tools}


class AgentDirectory:
    """Remembers, for a while, which agents and conversations exist.

    Only what exists is remembered: an agent made a moment ago is always found. One that
    was deleted through another gateway is believed in for at most `ttl_s`; its run then
    ends with AGENT_NOT_FOUND.

    Args:
        channel: To agent_loop.
        clock: The time.
        size: How many are remembered.
        ttl_s: For how long, in seconds.
    """

    def __init__(
        self, channel: grpc.aio.Channel, clock: Clock, *, size: int = 10_000, ttl_s: float = 60.0
    ) -> None:
        self._stub = agent_grpc.AgentServiceStub(channel)
        self._clock = clock
        self._size = size
        self._ttl_s = ttl_s
        self._known: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    async def check(self, project_id: str, agent_id: str, conversation_id: str) -> None:
        """Makes sure that the agent and its conversation exist.

        Raises:
            NotFoundError: ``AGENT_NOT_FOUND`` or ``CONVERSATION_NOT_FOUND``.
        """
        key = (project_id, agent_id, conversation_id)
        now = self._clock.monotonic()
        until = self._known.get(key)
        if until is not None and now < until:
            self._known.move_to_end(key)
            return
        if conversation_id == default_conversation(agent_id):
            await self._stub.GetAgent(agent_pb.GetAgentRequest(agent_id=agent_id))
        else:
            # The one call of the contract that names a conversation and changes nothing.
            await self._stub.GetContextWindow(
                agent_pb.GetContextWindowRequest(agent_id=agent_id, conversation_id=conversation_id)
            )
        self._known[key] = now + self._ttl_s
        self._known.move_to_end(key)
        if len(self._known) > self._size:
            self._known.popitem(last=False)

    def forget(self, project_id: str, agent_id: str | None = None) -> None:
        """Forgets an agent, or all agents of a project."""
        gone = [
            key
            for key in self._known
            if key[0] == project_id and (agent_id is None or key[1] == agent_id)
        ]
        for key in gone:
            del self._known[key]
