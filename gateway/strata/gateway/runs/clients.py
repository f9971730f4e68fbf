"""Clients of other services: turns, agents and groups of agent_loop, versions of tools."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

import grpc.aio

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.agent_loop.v1 import group_service_pb2_grpc as group_grpc
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.agent_loop.v1 import turn_service_pb2_grpc as turn_grpc
from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as execution_grpc
from strata.gateway.runs.dispatch.dispatcher import TurnClient
from strata.gateway.runs.domain.runs import is_group
from strata.gateway.runs.domain.timing import AGENT_CACHE_S
from strata.protocol.stream_completion import complete_in_background
from strata.shared.clock import Clock
from strata.shared.ids import default_conversation_id
from strata.shared.request_stream import RequestStream

_CACHED_AGENTS = 10_000


class GrpcTurnClient:
    """`TurnClient` over a channel to agent_loop."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = turn_grpc.TurnServiceStub(channel)

    async def execute(
        self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event, *, seconds: float
    ) -> AsyncGenerator[turn_pb.ExecuteRunResponse, None]:
        """See `TurnClient.execute`; leaving the iteration early closes the stream."""
        requests = RequestStream(request)
        if request.cancel:
            requests.close()
        cancelling = asyncio.create_task(_cancel_when_set(requests, cancel))
        # gRPC takes any asynchronous iterable.
        call: Any = self._stub.ExecuteRun(requests, timeout=seconds)  # type: ignore[arg-type]
        finished = False
        try:
            async for response in call:
                finished = response.event.HasField("run_finished")
                yield response
        finally:
            if finished:
                complete_in_background(call)
            else:
                call.cancel()
            cancelling.cancel()
            requests.close()


async def _cancel_when_set(
    requests: RequestStream[turn_pb.ExecuteRunRequest], cancel: asyncio.Event
) -> None:
    await cancel.wait()
    requests.add(turn_pb.ExecuteRunRequest(cancel=True))
    requests.close()


class TurnsByRunner:
    """`TurnClient` for the runs of agents and of groups.

    Args:
        agents: For the runs of agents.
        groups: For the runs of groups.
    """

    def __init__(self, agents: TurnClient, groups: TurnClient) -> None:
        self._agents = agents
        self._groups = groups

    def execute(
        self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event, *, seconds: float
    ) -> AsyncGenerator[turn_pb.ExecuteRunResponse, None]:
        """See `TurnClient.execute`."""
        turns = self._groups if is_group(request.agent_id) else self._agents
        return turns.execute(request, cancel, seconds=seconds)


class GroupDirectory:
    """The groups of the calling project, over a channel to agent_loop."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = group_grpc.GroupServiceStub(channel)

    async def get(self, group_id: str) -> group_pb.Group:
        """Returns a group.

        Raises:
            NotFoundError: ``GROUP_NOT_FOUND``.
        """
        response = await self._stub.GetGroup(group_pb.GetGroupRequest(group_id=group_id))
        group: group_pb.Group = response.group
        return group


class GrpcToolVersions:
    """Reads the present versions of a project's tools from tool_execution."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = execution_grpc.ExecutionServiceStub(channel)

    async def versions(self, names: Iterable[str]) -> Mapping[str, str]:
        """Returns the versions of tools by name; missing tools are left out."""
        request = execution_pb.ResolveToolsRequest(names=sorted(set(names)), skip_missing=True)
        response = await self._stub.ResolveTools(request)
        return {tool.name: tool.version for tool in response.tools}


class AgentDirectory:
    """Checks that agents and conversations exist, with a cache.

    Only existing agents are cached, so a new agent is always found. An agent that was deleted
    through another gateway stays in the cache for at most `ttl_s`; its run then ends with
    AGENT_NOT_FOUND.

    Args:
        channel: Channel to agent_loop.
        clock: The time.
        ttl_s: Seconds to keep an entry.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        clock: Clock,
        *,
        ttl_s: float = AGENT_CACHE_S,
    ) -> None:
        self._stub = agent_grpc.AgentServiceStub(channel)
        self._clock = clock
        self._ttl_s = ttl_s
        self._valid_until: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    async def check(self, project_id: str, agent_id: str, conversation_id: str) -> None:
        """Checks that the agent and its conversation exist.

        Raises:
            NotFoundError: ``AGENT_NOT_FOUND`` or ``CONVERSATION_NOT_FOUND``.
        """
        key = (project_id, agent_id, conversation_id)
        now = self._clock.monotonic()
        until = self._valid_until.get(key)
        if until is not None and now < until:
            self._valid_until.move_to_end(key)
            return
        if conversation_id == default_conversation_id(agent_id):
            await self._stub.GetAgent(agent_pb.GetAgentRequest(agent_id=agent_id))
        else:
            # The only call of the API that looks up a conversation and changes nothing.
            await self._stub.GetContextWindow(
                agent_pb.GetContextWindowRequest(agent_id=agent_id, conversation_id=conversation_id)
            )
        self._valid_until[key] = now + self._ttl_s
        self._valid_until.move_to_end(key)
        if len(self._valid_until) > _CACHED_AGENTS:
            self._valid_until.popitem(last=False)

    def forget(self, project_id: str, agent_id: str | None = None) -> None:
        """Drops an agent, or all agents of a project, from the cache."""
        forgotten = [
            key
            for key in self._valid_until
            if key[0] == project_id and (agent_id is None or key[1] == agent_id)
        ]
        for key in forgotten:
            del self._valid_until[key]
