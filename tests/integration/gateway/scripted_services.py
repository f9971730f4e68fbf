"""Gateways over scripted services: real gRPC, real PostgreSQL, both transports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import grpc.aio

from chat_messages import text_part
from integration.gateway.scripted_servicers import (
    CountingPassages,
    KnownAgents,
    KnownGroups,
    KnownTools,
    ScriptedTurns,
    UnfinishedAgents,
)
from strata.api.agent_loop.v1 import (
    agent_service_pb2_grpc,
    group_service_pb2_grpc,
    turn_service_pb2_grpc,
    unfinished_agent_service_pb2_grpc,
)
from strata.api.archival.v1 import passage_service_pb2_grpc
from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import admin_service_pb2_grpc, run_service_pb2, run_service_pb2_grpc
from strata.api.tool_execution.v1 import execution_service_pb2_grpc
from strata.gateway.auth.bootstrap import FirstKey, ensure_local_project, ensure_organization_key
from strata.gateway.main import build
from strata.gateway.migrations import MIGRATIONS
from strata.gateway.runs.domain import timing
from strata.gateway.settings import GatewaySettings
from strata.shared.auth import TokenVerifier, generate_key_pair, public_key_of
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.server import serving
from strata.shared.service import BackgroundTasks, GrpcService, Service, Wiring
from strata.shared.settings import ServiceSettings
from strata.shared.telemetry import Telemetry

ABSENT_SERVICES = ("core_memory", "recall")


@dataclass
class Gateway:
    """A running gateway, a project key for it and an organization key."""

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
    """Returns a message without a role, which is one of the user."""
    return message_pb2.MessageInput(parts=[text_part(text)])


# The lease is long, so that a process that is paused for some seconds keeps its runs. Tests of
# takeovers set a shorter one.
_TIMING = {"LEASE_S": 30, "HEARTBEAT_S": 0.3, "POLL_S": 0.2}


@dataclass
class ScriptedServices:
    """The scripted services, and as many gateways in front of them as a test starts."""

    transport: str
    urls: Any
    private_key: str
    organization: FirstKey
    local: FirstKey
    turns: ScriptedTurns = field(default_factory=ScriptedTurns)
    agents: KnownAgents = field(default_factory=KnownAgents)
    unfinished: UnfinishedAgents = field(default_factory=UnfinishedAgents)
    groups: KnownGroups = field(default_factory=KnownGroups)
    tools: KnownTools = field(default_factory=KnownTools)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    targets: dict[str, str] = field(default_factory=dict)

    def settings(self, **changes: Any) -> GatewaySettings:
        base: dict[str, Any] = {
            **_databases(self.urls),
            "port": 0,
            "token_private_key": self.private_key,
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
        """Returns the services behind the gateway; unscripted ones are absent."""
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
                    GrpcService(
                        "strata.api.agent_loop.v1.UnfinishedAgentService",
                        unfinished_agent_service_pb2_grpc.add_UnfinishedAgentServiceServicer_to_server,
                        self.unfinished,
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
        """Makes the unscripted services refuse every call immediately.

        Over sockets a call of an absent service waits until shortly before its deadline.
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

    async def gateway(self, *, telemetry: Telemetry | None = None, **changes: Any) -> Gateway:
        """Starts a gateway; it ends with the test.

        Args:
            telemetry: Its metrics and its tracer; those of its own by default.
            changes: Settings, and constants of `strata.gateway.runs.domain.timing` in lower case.
        """
        constants = take_timing(changes)
        settings = self.settings(**changes)
        stack = AsyncExitStack()
        await self.stack.enter_async_context(stack)
        if self.transport == "socket":
            with patch.multiple(timing, **constants):
                server = await stack.enter_async_context(
                    serving(build, settings, telemetry=telemetry)
                )
            channel: Any = grpc.aio.insecure_channel(server.address)
            stack.push_async_callback(channel.close)
            service, address = server._service, server.address
        else:
            verifier = TokenVerifier(public_key_of(self.private_key))
            network = InProcessNetwork(verifier, telemetry=telemetry)
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


def _databases(urls: Any) -> dict[str, Any]:
    return {
        "database_url": urls.service_url,
        "worker_database_url": urls.worker_url,
        "key_pepper": "pepper of the tests",
    }


async def _make_first_keys(urls: Any) -> tuple[FirstKey, FirstKey]:
    settings = GatewaySettings(**_databases(urls))
    organization = await ensure_organization_key(settings)
    return organization, await ensure_local_project(settings, organization.secret)


def _builder(service: Service) -> Any:
    async def build_scripted(_: ServiceSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
        return service

    return build_scripted


@asynccontextmanager
async def open_services(databases: Any, transport: str) -> AsyncIterator[ScriptedServices]:
    urls, (organization, local) = await databases.prepared(MIGRATIONS, _make_first_keys)
    services = ScriptedServices(transport, urls, generate_key_pair()[0], organization, local)
    async with services.stack:
        await services.start()
        yield services
    await databases.drop(urls)
