"""A gateway with a scripted agent loop: real gRPC, real PostgreSQL, both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import grpc.aio

from contract.gateway.stores import drop
from strata.api.agent_loop.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    group_service_pb2,
    group_service_pb2_grpc,
    turn_service_pb2,
    turn_service_pb2_grpc,
)
from strata.api.archival.v1 import passage_service_pb2, passage_service_pb2_grpc
from strata.api.common.v1 import message_pb2, run_event_pb2, usage_pb2
from strata.api.gateway.v1 import (
    admin_service_pb2_grpc,
    run_service_pb2,
    run_service_pb2_grpc,
)
from strata.api.tool_execution.v1 import (
    execution_service_pb2,
    execution_service_pb2_grpc,
    tool_service_pb2,
)
from strata.gateway.auth.bootstrap import FirstKey, ensure_local_project, ensure_organization_key
from strata.gateway.main import build
from strata.gateway.migrations import MIGRATIONS
from strata.gateway.runs.domain import timing
from strata.gateway.settings import GatewaySettings
from strata.protocol.errors import NotFoundError, Reason, UnavailableError
from strata.shared.auth import TokenVerifier, generate_key_pair, public_key_of
from strata.shared.context import current
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.server import serving
from strata.shared.service import BackgroundTasks, GrpcService, Service, Wiring
from strata.shared.settings import ServiceSettings

# Kinds of the events of a run of the script `reply`.
REPLY_EVENTS = [
    "run_started",
    "step_started",
    "text_delta",
    "text_delta",
    "message_stored",
    "run_finished",
]
ABSENT_SERVICES = ("core_memory", "recall")
Script = Callable[[turn_service_pb2.ExecuteRunRequest], AsyncIterator[run_event_pb2.RunEvent]]


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


class KnownAgents(agent_service_pb2_grpc.AgentServiceServicer):
    """An `AgentService` in which the agents of a set exist."""

    def __init__(self) -> None:
        self.agents: set[str] = set()
        self.conversations: set[str] = set()
        self.calls: list[str] = []
        # Replaces the method for one test, over both transports.
        self.on_get: Callable[[Any, Any], Awaitable[Any]] | None = None
        self.on_export: Callable[[Any, Any], AsyncIterator[Any]] | None = None

    async def GetAgent(self, request: Any, context: Any) -> Any:
        self.calls.append("GetAgent")
        if self.on_get is not None:
            return await self.on_get(request, context)
        self._require(request.agent_id)
        agent = agent_service_pb2.Agent(id=request.agent_id, name="Ada")
        return agent_service_pb2.GetAgentResponse(agent=agent)

    async def GetContextWindow(self, request: Any, context: Any) -> Any:
        self._require(request.agent_id)
        if request.conversation_id not in self.conversations:
            raise NotFoundError("No such conversation.", reason=Reason.CONVERSATION_NOT_FOUND)
        return agent_service_pb2.GetContextWindowResponse()

    async def DeleteAgent(self, request: Any, context: Any) -> Any:
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


def event(**fields: Any) -> run_event_pb2.RunEvent:
    return run_event_pb2.RunEvent(**fields)


def started() -> run_event_pb2.RunEvent:
    return event(run_started=run_event_pb2.RunStarted(attempt=1))


def step(number: int = 1) -> run_event_pb2.RunEvent:
    return event(
        step_started=run_event_pb2.StepStarted(
            taint=[message_pb2.PROVENANCE_MCP], step_id=f"step-{number}", step=number
        )
    )


def delta(text: str, message_id: str = "message-1") -> run_event_pb2.RunEvent:
    return event(text_delta=run_event_pb2.TextDelta(message_id=message_id, text=text))


def stored(text: str, message_id: str = "message-1") -> run_event_pb2.RunEvent:
    message = message_pb2.Message(
        id=message_id,
        role=message_pb2.ROLE_ASSISTANT,
        parts=[message_pb2.Part(text=message_pb2.TextPart(text=text))],
        usage=usage_pb2.Usage(prompt_tokens=7, completion_tokens=3, total_tokens=10),
    )
    return event(message_stored=run_event_pb2.MessageStored(message=message))


def finished(
    reason: Any = run_event_pb2.STOP_REASON_END_TURN, steps: int = 1
) -> run_event_pb2.RunEvent:
    usage = usage_pb2.Usage(prompt_tokens=7, completion_tokens=3, total_tokens=10)
    return event(
        run_finished=run_event_pb2.RunFinished(
            stop_reason=reason,
            usage=usage,
            step_count=steps,
            taint=[message_pb2.PROVENANCE_WEB],
        )
    )


def reply(text: str) -> Script:
    """A whole plain turn: two deltas, one message, the end."""

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        middle = len(text) // 2
        yield started()
        yield step()
        yield delta(text[:middle])
        yield delta(text[middle:])
        yield stored(text)
        yield finished()

    return turn


@dataclass
class Gateway:
    """A running gateway, a project key for it and an organisation key."""

    service: Service
    channel: Any
    api_key: str
    organization_key: str
    stop: Callable[[], Awaitable[None]]
    address: str = ""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.api_key}"),)

    @property
    def as_organization(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.organization_key}"),)

    @property
    def runs(self) -> run_service_pb2_grpc.RunServiceStub:
        return run_service_pb2_grpc.RunServiceStub(self.channel)

    @property
    def admin(self) -> admin_service_pb2_grpc.AdminServiceStub:
        return admin_service_pb2_grpc.AdminServiceStub(self.channel)

    def send(self, agent_id: str, text: str = "Hi", **fields: Any) -> Any:
        """Starts a SendMessage call."""
        return self.runs.SendMessage(
            run_service_pb2.SendMessageRequest(
                agent_id=agent_id, messages=[message(text)], **fields
            ),
            metadata=self.metadata,
            timeout=60,
        )

    def stream(self, run_id: str, after: int = 0, **fields: Any) -> Any:
        """Starts a StreamRun call."""
        return self.runs.StreamRun(
            run_service_pb2.StreamRunRequest(run_id=run_id, after_sequence=after, **fields),
            metadata=self.metadata,
            timeout=60,
        )

    async def start_run(self, agent_id: str, **fields: Any) -> run_service_pb2.Run:
        request = run_service_pb2.StartRunRequest(
            agent_id=agent_id, messages=[message("Hi")], **fields
        )
        return (await self.runs.StartRun(request, metadata=self.metadata, timeout=30)).run

    async def run(self, run_id: str) -> run_service_pb2.Run:
        request = run_service_pb2.GetRunRequest(run_id=run_id)
        return (await self.runs.GetRun(request, metadata=self.metadata, timeout=30)).run

    async def cancel(self, run_id: str) -> run_service_pb2.Run:
        request = run_service_pb2.CancelRunRequest(run_id=run_id)
        return (await self.runs.CancelRun(request, metadata=self.metadata, timeout=30)).run


def message(text: str) -> message_pb2.MessageInput:
    return message_pb2.MessageInput(parts=[message_pb2.Part(text=message_pb2.TextPart(text=text))])


async def collect(call: Any) -> list[run_event_pb2.RunEvent]:
    """Reads a stream of runs to its end."""
    return [response.event async for response in call]


def kinds(events: list[run_event_pb2.RunEvent]) -> list[str | None]:
    return [event.WhichOneof("event") for event in events]


async def eventually(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Waits until the condition holds (it may be a coroutine function)."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
            await asyncio.sleep(0.02)


# The lease is long, so that a process that is paused for some seconds keeps its runs. Tests of
# takeovers set a shorter one.
_TIMING = {"LEASE_S": 30, "HEARTBEAT_S": 0.3, "POLL_S": 0.2}


@dataclass
class ScriptedServices:
    """The scripted services, and as many gateways in front of them as a test starts."""

    transport: str
    urls: Any
    private_key: str
    organization: FirstKey | None = None
    local: FirstKey | None = None
    turns: ScriptedTurns = field(default_factory=ScriptedTurns)
    agents: KnownAgents = field(default_factory=KnownAgents)
    groups: KnownGroups = field(default_factory=KnownGroups)
    tools: KnownTools = field(default_factory=KnownTools)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    targets: dict[str, str] = field(default_factory=dict)

    def settings(self, **changes: Any) -> GatewaySettings:
        base: dict[str, Any] = {
            "port": 0,
            "database_url": self.urls.service_url,
            "worker_database_url": self.urls.worker_url,
            "token_private_key": self.private_key,
            "key_pepper": "pepper of the tests",
            "targets": self.targets,
            "pool_size": 5,
            "worker_pool_size": 2,
            "drain_s": 0,
            "grace_s": 1,
        }
        return GatewaySettings(**{**base, **changes})

    def new_agent(self) -> str:
        agent_id = new_id("agent")
        self.agents.agents.add(agent_id)
        return agent_id

    def services(self) -> list[Service]:
        """The services behind the gateway; those that a test does not script are not there."""
        return [
            Service(
                "agent_loop",
                [
                    GrpcService(
                        "strata.api.agent_loop.v1.TurnService",
                        turn_service_pb2_grpc.add_TurnServiceServicer_to_server,
                        self.turns,
                    ),
                    GrpcService(
                        "strata.api.agent_loop.v1.AgentService",
                        agent_service_pb2_grpc.add_AgentServiceServicer_to_server,
                        self.agents,
                    ),
                    GrpcService(
                        "strata.api.agent_loop.v1.GroupService",
                        group_service_pb2_grpc.add_GroupServiceServicer_to_server,
                        self.groups,
                    ),
                ],
            ),
            Service(
                "tool_execution",
                [
                    GrpcService(
                        "strata.api.tool_execution.v1.ExecutionService",
                        execution_service_pb2_grpc.add_ExecutionServiceServicer_to_server,
                        self.tools,
                    )
                ],
            ),
            Service(
                "archival",
                [
                    GrpcService(
                        "strata.api.archival.v1.PassageService",
                        passage_service_pb2_grpc.add_PassageServiceServicer_to_server,
                        CountingPassages(),
                    )
                ],
            ),
        ]

    async def start(self) -> None:
        self.organization = await ensure_organization_key(self.settings())
        self.local = await ensure_local_project(self.settings(), self.organization.secret)
        if self.transport == "inprocess":
            return
        for service in self.services():
            server = await self.stack.enter_async_context(
                serving(_builder(service), self.service_settings())
            )
            self.targets[service.name] = server.address
        for absent in ABSENT_SERVICES:
            self.targets[absent] = "127.0.0.1:1"

    async def serve_absent_services(self) -> None:
        """Makes the services that are not scripted refuse every call at once.

        Over sockets a call of a service that is not there waits until shortly before its deadline.
        """
        if self.transport == "inprocess":
            return
        for name in ABSENT_SERVICES:
            server = await self.stack.enter_async_context(
                serving(_builder(Service(name, [])), self.service_settings())
            )
            self.targets[name] = server.address

    def service_settings(self) -> ServiceSettings:
        return ServiceSettings(
            token_public_keys=public_key_of(self.private_key), drain_s=0, grace_s=0
        )

    async def gateway(self, **changes: Any) -> Gateway:
        """Starts a gateway; it ends with the test.

        Args:
            changes: Settings, and constants of `strata.gateway.runs.domain.timing` in lower case.
        """
        constants = take_timing(changes)
        assert self.local is not None
        assert self.organization is not None
        settings = self.settings(**changes)
        stack = AsyncExitStack()
        await self.stack.enter_async_context(stack)
        if self.transport == "socket":
            with patch.multiple(timing, **constants):
                server = await stack.enter_async_context(serving(build, settings))
            channel: Any = grpc.aio.insecure_channel(server.address)
            stack.push_async_callback(channel.close)
            service, address = server._service, server.address
        else:
            network = InProcessNetwork(TokenVerifier(public_key_of(self.private_key)))
            stack.push_async_callback(network.close)
            for grpc_service in self.services():
                network.register(grpc_service)
            inner = await stack.enter_async_context(AsyncExitStack())
            with patch.multiple(timing, **constants):
                service = await build(settings, network, inner)
            await stack.enter_async_context(BackgroundTasks(service))
            network.register(service, settings)
            channel, address = network.raw_channel("gateway"), ""
        keys = (self.local.secret, self.organization.secret)
        return Gateway(service, channel, *keys, stack.aclose, address)


def take_timing(changes: dict[str, Any]) -> dict[str, Any]:
    """Removes the constants of `timing` from changes, and returns all that differ in tests."""
    names = [name for name in changes if hasattr(timing, name.upper())]
    return {**_TIMING, **{name.upper(): changes.pop(name) for name in names}}


def _builder(service: Service) -> Any:
    async def build_scripted(_: ServiceSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
        return service

    return build_scripted


async def open_services(databases: Any, transport: str) -> AsyncIterator[ScriptedServices]:
    urls = await databases.of(MIGRATIONS)
    services = ScriptedServices(transport, urls, generate_key_pair()[0])
    async with services.stack:
        await services.start()
        yield services
    await drop(databases, urls)
