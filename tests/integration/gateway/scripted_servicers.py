"""Servicers behind the gateway with scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from integration.gateway.scripted_runs import Script, reply
from strata.api.agent_loop.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    group_service_pb2,
    group_service_pb2_grpc,
    turn_service_pb2,
    turn_service_pb2_grpc,
    unfinished_agent_service_pb2,
    unfinished_agent_service_pb2_grpc,
)
from strata.api.archival.v1 import passage_service_pb2, passage_service_pb2_grpc
from strata.api.common.v1 import run_event_pb2
from strata.api.tool_execution.v1 import (
    execution_service_pb2,
    execution_service_pb2_grpc,
    tool_service_pb2,
)
from strata.protocol.errors import InternalError, NotFoundError, Reason, UnavailableError
from strata.shared.context import current, current_project


@dataclass
class Holder:
    """The member that speaks next in a swarm."""

    agent_id: str = ""
    run_id: str = ""
    first: str = ""
    number: int = 0


class ScriptedTurns(turn_service_pb2_grpc.TurnServiceServicer):
    """A `TurnService` with scripted turns; each attempt of a run calls the script.

    Attributes:
        recorded: Requests to record a run.
        cancelled: Runs whose turn was asked to cancel.
        lost: Runs whose stream broke.
        on_cancel: Script of a cancelled turn; None breaks its stream.
    """

    def __init__(self) -> None:
        self.requests: list[turn_service_pb2.ExecuteRunRequest] = []
        self.recorded: list[turn_service_pb2.RecordRunRequest] = []
        self.callers: list[Any] = []
        self.cancelled: list[str] = []
        self.lost: list[str] = []
        self.on_cancel: Script | None = None
        self.script: Script = reply("Hello!")
        self.holders: dict[str, Holder] = {}
        # Running recordings, their highest number, and the event that they wait for.
        self.recording = self.most_recording = 0
        self.may_record = asyncio.Event()
        self.may_record.set()

    async def BeginGroupRun(self, request: Any, context: Any) -> Any:
        holder = self.holders.setdefault(request.group_id, Holder())
        if holder.run_id != request.run_id:
            holder.run_id, holder.first, holder.number = request.run_id, holder.agent_id, 0
        return turn_service_pb2.BeginGroupRunResponse(holder_agent_id=holder.first)

    async def HandOver(self, request: Any, context: Any) -> Any:
        holder = self.holders[request.group_id]
        if holder.run_id == request.run_id and request.number > holder.number:
            holder.agent_id, holder.number = request.holder_agent_id, request.number
        return turn_service_pb2.HandOverResponse()

    async def RecordRun(self, request_iterator: Any, context: Any) -> Any:
        self.recorded = [request async for request in request_iterator]
        self.recording += 1
        self.most_recording = max(self.most_recording, self.recording)
        await self.may_record.wait()
        self.recording -= 1
        for piece in (b'{"format": ', b'"a test"}'):
            yield turn_service_pb2.RecordRunResponse(piece=piece)

    async def ExecuteRun(self, request_iterator: Any, context: Any) -> Any:
        requests = aiter(request_iterator)
        request = await anext(requests)
        self.requests.append(request)
        self.callers.append(current().caller)
        if request.cancel and self.on_cancel is None:
            raise UnavailableError("No process can settle the turn.")
        responses: asyncio.Queue[Any] = asyncio.Queue()
        script = self.on_cancel if request.cancel and self.on_cancel else self.script
        playing = asyncio.create_task(self._play(script(request), responses))
        listening = asyncio.create_task(self._listen(requests, request.run_id, playing))
        try:
            while (response := await responses.get()) is not None:
                yield response
            if request.run_id in self.cancelled and self.on_cancel is not None:
                async for event in self.on_cancel(request):
                    yield turn_service_pb2.ExecuteRunResponse(event=event)
            else:
                await playing
        except (asyncio.CancelledError, GeneratorExit):
            if not playing.cancelled():
                self.lost.append(request.run_id)
                raise
            raise UnavailableError("The process of the turn is gone.") from None
        finally:
            listening.cancel()
            playing.cancel()

    async def _play(self, script: AsyncIterator[Any], responses: asyncio.Queue[Any]) -> None:
        try:
            async for response in script:
                if isinstance(response, run_event_pb2.RunEvent):
                    response = turn_service_pb2.ExecuteRunResponse(event=response)
                await responses.put(response)
        finally:
            responses.put_nowait(None)

    async def _listen(self, requests: Any, run_id: str, playing: asyncio.Task[None]) -> None:
        async for request in requests:
            if request.cancel:
                self.cancelled.append(run_id)
                playing.cancel()


class UnfinishedAgents(unfinished_agent_service_pb2_grpc.UnfinishedAgentServiceServicer):
    """An `UnfinishedAgentService` that counts its calls.

    Attributes:
        projects: The projects of the calls.
        failures: How many of the next calls fail.
    """

    def __init__(self) -> None:
        self.projects: list[str] = []
        self.failures = 0

    async def RemoveUnfinishedAgents(self, request: Any, context: Any) -> Any:
        self.projects.append(current_project())
        if self.failures:
            self.failures -= 1
            raise InternalError("The agent loop has died.")
        return unfinished_agent_service_pb2.RemoveUnfinishedAgentsResponse()


class KnownAgents(agent_service_pb2_grpc.AgentServiceServicer):
    """An `AgentService` in which the agents of a set exist."""

    def __init__(self) -> None:
        self.agents: set[str] = set()
        self.conversations: set[str] = set()
        self.names: dict[str, str] = {}
        self.calls: list[str] = []
        # Replaces the method for one test, on both transports.
        self.on_get: Callable[[Any, Any], Awaitable[Any]] | None = None
        self.on_create: Callable[[], None] | None = None
        self.on_delete: Callable[[], None] | None = None
        self.on_export: Callable[[Any, Any], AsyncIterator[Any]] | None = None

    async def GetAgent(self, request: Any, context: Any) -> Any:
        self.calls.append("GetAgent")
        if self.on_get is not None:
            return await self.on_get(request, context)
        self._require(request.agent_id)
        agent = agent_service_pb2.Agent(
            id=request.agent_id, name=self.names.get(request.agent_id, "Ada")
        )
        return agent_service_pb2.GetAgentResponse(agent=agent)

    async def GetContextWindow(self, request: Any, context: Any) -> Any:
        self._require(request.agent_id)
        if request.conversation_id not in self.conversations:
            raise NotFoundError("No such conversation.", reason=Reason.CONVERSATION_NOT_FOUND)
        return agent_service_pb2.GetContextWindowResponse()

    async def CreateAgent(self, request: Any, context: Any) -> Any:
        if self.on_create is not None:
            self.on_create()
        return agent_service_pb2.CreateAgentResponse()

    async def DeleteAgent(self, request: Any, context: Any) -> Any:
        self.calls.append("DeleteAgent")
        if self.on_delete is not None:
            self.on_delete()
        self._require(request.agent_id)
        self.agents.discard(request.agent_id)
        context.set_trailing_metadata((("x-trailing", "kept"),))
        return agent_service_pb2.DeleteAgentResponse()

    async def ExportAgent(self, request: Any, context: Any) -> Any:
        if self.on_export is not None:
            async for response in self.on_export(request, context):
                yield response
            return
        for number in range(int(request.agent_id or "3")):
            yield agent_service_pb2.ExportAgentResponse(chunk=b"%d" % number)

    async def ImportAgent(self, request_iterator: Any, context: Any) -> Any:
        """Counts the messages; refuses one with the name ``refuse``."""
        count = 0
        async for request in request_iterator:
            count += 1
            _refuse_on_demand(request.name, count)
        return agent_service_pb2.ImportAgentResponse(warnings=[str(count)])

    def _require(self, agent_id: str) -> None:
        if agent_id not in self.agents:
            raise NotFoundError(
                "No such agent.", reason=Reason.AGENT_NOT_FOUND, metadata={"id": agent_id}
            )


class KnownGroups(group_service_pb2_grpc.GroupServiceServicer):
    """A `GroupService` with the groups of a test."""

    def __init__(self) -> None:
        self.groups: dict[str, group_service_pb2.Group] = {}

    async def GetGroup(self, request: Any, context: Any) -> Any:
        return group_service_pb2.GetGroupResponse(group=self._known(request.group_id))

    async def DeleteGroup(self, request: Any, context: Any) -> Any:
        del self.groups[self._known(request.group_id).id]
        return group_service_pb2.DeleteGroupResponse()

    def _known(self, group_id: str) -> group_service_pb2.Group:
        if group_id not in self.groups:
            raise NotFoundError("No such group.", reason=Reason.GROUP_NOT_FOUND)
        return self.groups[group_id]


class KnownTools(execution_service_pb2_grpc.ExecutionServiceServicer):
    """An `ExecutionService` with the tool versions of a test."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}

    async def ResolveTools(self, request: Any, context: Any) -> Any:
        assert request.skip_missing
        tools = [
            tool_service_pb2.Tool(name=name, version=self.versions[name])
            for name in request.names
            if name in self.versions
        ]
        return execution_service_pb2.ResolveToolsResponse(tools=tools)


class CountingPassages(passage_service_pb2_grpc.PassageServiceServicer):
    """A `PassageService` that counts received messages; refuses the archive ``refuse``."""

    async def UploadPassages(self, request_iterator: Any, context: Any) -> Any:
        count = 0
        async for request in request_iterator:
            count += 1
            _refuse_on_demand(request.archive_id, count)
            yield passage_service_pb2.UploadPassagesResponse(received_count=count)


def _refuse_on_demand(name: str, count: int) -> None:
    if name == "refuse":
        raise UnavailableError("Not now.", metadata={"count": count}, retry_after=2.5)
