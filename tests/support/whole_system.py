"""The whole system in the test's process: every service, real engines, a scripted model.

Two shapes with one interface. `IN_PROCESS` is what `strata up` runs: in-process channels between
the services, one socket in front of the gateway. `SOCKETS` is what a cluster runs: every service
behind a gRPC server of its own. Tests call both as a client does: over a socket, with an API key.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import StrEnum
from typing import Any
from unittest.mock import patch

import grpc.aio

from chat_messages import text_of, user_message
from doubles.model_server import ModelServer
from metering import Cost, Meter, SqlMeter
from nested_transactions import port_and_name, refuse_nested_transactions
from run_events import RunEvents, RunStream
from strata.agent_loop.settings import EndpointSettings
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.agent_loop.v1 import group_service_pb2_grpc as group_grpc
from strata.api.agent_loop.v1 import model_service_pb2_grpc as model_grpc
from strata.api.agent_loop.v1 import prompt_service_pb2_grpc as prompt_grpc
from strata.api.archival.v1 import archive_service_pb2_grpc as archive_grpc
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.common.v1 import message_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as block_grpc
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import admin_service_pb2_grpc as admin_grpc
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import run_service_pb2_grpc as run_grpc
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.tool_execution.v1 import tool_service_pb2_grpc as tool_grpc
from strata.core_memory import main as core_memory_main
from strata.gateway.auth.bootstrap import ensure_local_project, ensure_organization_key
from strata.gateway.runs.domain import timing
from strata.gateway.settings import GatewaySettings
from strata.protocol.errors import NotFoundError
from strata.shared.auth import TokenVerifier, generate_key_pair
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.interceptors.client import ClientChannel
from strata.shared.scopes import Scope
from strata.shared.secrets import generate_master_key
from strata.shared.server import serving
from strata.shared.service import BackgroundTasks, Service, Wiring
from strata.shared.telemetry import Telemetry
from strata.standalone.compose.services import GATEWAY, INNER_SERVICES, SERVICES, ServiceSpec
from strata.standalone.ports import ReservedPort
from strata.standalone.vectors import EmbeddedVectors

CALL_TIMEOUT_S = 60.0
_OPEN_STATES = (
    run_pb.RUN_STATE_QUEUED,
    run_pb.RUN_STATE_RUNNING,
    run_pb.RUN_STATE_CANCELLING,
)


class Shape(StrEnum):
    """How the services reach each other."""

    IN_PROCESS = "in_process"
    SOCKETS = "sockets"


class KeyedChannel(ClientChannel):
    """A channel that adds an API key to its calls; raises errors of `strata.protocol.errors`."""

    def __init__(self, address: str, api_key: str) -> None:
        super().__init__(grpc.aio.insecure_channel(address))
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._keyed(super().unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._keyed(super().unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._keyed(super().stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._keyed(super().stream_stream(*args, **kwargs))

    def _keyed(self, method: Any) -> Any:
        return functools.partial(method, metadata=self._metadata, timeout=CALL_TIMEOUT_S)


class SystemClient:
    """A client of a running system, with an API key."""

    def __init__(self, channel: KeyedChannel) -> None:
        self.channel = channel
        self.agents = agent_grpc.AgentServiceStub(channel)
        self.groups = group_grpc.GroupServiceStub(channel)
        self.models = model_grpc.ModelServiceStub(channel)
        self.prompts = prompt_grpc.PromptServiceStub(channel)
        self.blocks = block_grpc.BlockServiceStub(channel)
        self.files = file_grpc.FileServiceStub(channel)
        self.messages = message_grpc.MessageServiceStub(channel)
        self.archives = archive_grpc.ArchiveServiceStub(channel)
        self.passages = passage_grpc.PassageServiceStub(channel)
        self.tools = tool_grpc.ToolServiceStub(channel)
        self.runs = run_grpc.RunServiceStub(channel)
        self.admin = admin_grpc.AdminServiceStub(channel)

    async def make_agent(self, model: str = "", **fields: Any) -> agent_pb.Agent:
        """Creates an agent; `model` is a handle, empty for the server's default."""
        fields.setdefault("name", f"tester {new_id('x')[-8:]}")
        if model:
            fields["model"] = agent_pb.ModelConfig(handle=model)
        response = await self.agents.CreateAgent(agent_pb.CreateAgentRequest(**fields))
        agent: agent_pb.Agent = response.agent
        return agent

    def begin(self, agent: agent_pb.Agent, *texts: str, **fields: Any) -> RunStream:
        """Sends messages; returns the stream of the run."""
        request = run_pb.SendMessageRequest(
            agent_id=agent.id, messages=[user_message(text) for text in texts], **fields
        )
        return RunStream(self.runs.SendMessage(request))

    async def send(self, agent: agent_pb.Agent, *texts: str, **fields: Any) -> RunEvents:
        """Sends messages and reads all events of the run."""
        return await self.begin(agent, *texts, **fields).rest()

    async def follow(self, run_id: str, after: int = 0) -> RunEvents:
        """Reads the events of a run after a sequence, to its end."""
        request = run_pb.StreamRunRequest(run_id=run_id, after_sequence=after)
        return await RunStream(self.runs.StreamRun(request)).rest()

    async def run(self, run_id: str) -> run_pb.Run:
        """Returns a run."""
        run: run_pb.Run = (await self.runs.GetRun(run_pb.GetRunRequest(run_id=run_id))).run
        return run

    async def cancel(self, run_id: str) -> None:
        """Requests the cancellation of a run."""
        await self.runs.CancelRun(run_pb.CancelRunRequest(run_id=run_id))

    async def end_open_runs(self) -> None:
        """Ends all runs of the project, so that none calls the model during the next test.

        A memory agent whose run failed starts another one later, so it is deleted.
        """
        request = run_pb.ListRunsRequest(states=_OPEN_STATES)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while runs := (await self.runs.ListRuns(request)).runs:
                for run in runs:
                    if run.kind == run_pb.RUN_KIND_SLEEPTIME:
                        with suppress(NotFoundError):
                            await self.agents.DeleteAgent(
                                agent_pb.DeleteAgentRequest(agent_id=run.agent_id)
                            )
                    await self.cancel(run.id)
                await asyncio.sleep(0.02)

    async def log(
        self, agent: agent_pb.Agent, conversation_id: str = ""
    ) -> list[message_pb2.Message]:
        """Returns the newest stored messages of a conversation (at most 500), oldest first."""
        request = message_pb.ListMessagesRequest(
            conversation_id=conversation_id or agent.default_conversation_id,
            page_size=500,
            order=message_pb.LIST_ORDER_NEWEST_FIRST,
        )
        return list(reversed((await self.messages.ListMessages(request)).messages))

    async def system_message(self, agent: agent_pb.Agent) -> str:
        """Returns the stored system message of the default conversation."""
        request = message_pb.ListMessagesRequest(
            conversation_id=agent.default_conversation_id, page_size=1
        )
        first = (await self.messages.ListMessages(request)).messages[0]
        assert first.role == message_pb2.ROLE_SYSTEM
        return text_of(first)

    async def memory_status(self, agent: agent_pb.Agent) -> run_pb.MemoryStatus:
        """Returns the state of the memory agent in the one conversation of an agent."""
        request = run_pb.GetMemoryStatusRequest(agent_id=agent.id)
        [conversation] = (await self.runs.GetMemoryStatus(request)).conversations
        assert isinstance(conversation, run_pb.MemoryStatus)
        return conversation

    async def memory_runs(self, agent: agent_pb.Agent) -> list[run_pb.Run]:
        """Returns the runs of an agent's memory agent, oldest first."""
        request = run_pb.ListRunsRequest(agent_id=agent.memory_agent_id)
        return list(reversed((await self.runs.ListRuns(request)).runs))

    async def block(self, agent: agent_pb.Agent, label: str) -> block_pb.Block:
        """Returns a block of an agent."""
        request = block_pb.GetBlockRequest(agent_id=agent.id, label=label)
        block: block_pb.Block = (await self.blocks.GetBlock(request)).block
        return block


class System(SystemClient):
    """A running system, and a client of it.

    Attributes:
        shape: How the services reach each other.
        address: Address of the gateway.
        key: An API key with every scope, for the project "default".
        project_id: That project.
        model: The scripted model server.
        urls: The URLs of the databases, by service.
        partition_urls: The URLs for additional partitions, by partition and service.
        gateway_settings: The settings of the gateway.
        http_url: Base URL of its HTTP port, if it was requested.
        organization_key: The organization key, which can create projects.
        metrics_url: Base URL of its metrics port, with the metrics of all services.
    """

    gateway_settings: GatewaySettings
    http_url: str = ""
    organization_key: str = ""
    metrics_url: str = ""

    def __init__(
        self, shape: Shape, address: str, key: str, project_id: str, model: ModelServer
    ) -> None:
        super().__init__(KeyedChannel(address, key))
        self.shape = shape
        self.address = address
        self.key = key
        self.project_id = project_id
        self.model = model
        self.urls: dict[str, Any] = {}
        self.partition_urls: dict[str, dict[str, Any]] = {}
        self.meter: Meter | None = None

    def client(self, key: str) -> SystemClient:
        """Returns a client with another key; the caller closes its channel."""
        return SystemClient(KeyedChannel(self.address, key))

    async def key_of_other_project(self, partition: str = "") -> str:
        """Returns an API key, with all scopes, of a new project of the organization."""
        operator = self.client(self.organization_key)
        try:
            made = await operator.admin.CreateProject(
                admin_pb.CreateProjectRequest(
                    name=f"elsewhere {new_id('x')[-8:]}", partition=partition
                )
            )
            key = await operator.admin.CreateApiKey(
                admin_pb.CreateApiKeyRequest(
                    project_id=made.project.id, name="elsewhere", scopes=list(Scope)
                )
            )
        finally:
            await operator.channel.close()
        return str(key.secret)

    @asynccontextmanager
    async def measure(self) -> AsyncIterator[Cost]:
        """Counts the costs of the block."""
        assert self.meter is not None
        async with self.meter.measure() as cost:
            yield cost


def model_endpoints(model: ModelServer) -> tuple[EndpointSettings, ...]:
    """Returns the endpoints of the model double: handles such as `openai/test-model`."""
    return (
        EndpointSettings(
            name="openai", base_url=model.openai_url, api_key="key", models=("test-model",)
        ),
        EndpointSettings(
            name="anthropic",
            type="anthropic",
            base_url=model.anthropic_url,
            api_key="key",
            models=("test-model",),
        ),
        EndpointSettings(
            name="openai_responses",
            preset="openai_responses",
            base_url=model.openai_url,
            api_key="key",
            models=("test-model",),
        ),
    )


@asynccontextmanager
async def open_system(
    databases: Any,
    vectors: EmbeddedVectors,
    shape: Shape,
    partitions: Mapping[str, Any] | None = None,
    **gateway: Any,
) -> AsyncIterator[System]:
    """Starts all services on new databases; `gateway` contains settings of the gateway.

    `partitions` create the databases of additional partitions, by name.

    All systems of a session use the same collections of one vector engine. Agents and archives have
    unique ids, so systems do not read each other's data.
    """
    telemetry, sql = Telemetry(), SqlMeter()
    async with AsyncExitStack() as stack:
        stack.enter_context(sql.on())
        model = await stack.enter_async_context(ModelServer())
        builder = await _Builder.make(databases, vectors, model, partitions or {})
        sql.databases |= builder.databases
        stack.enter_context(refuse_nested_transactions(builder.databases))
        if shape is Shape.SOCKETS:
            builder.gateway_port = stack.enter_context(ReservedPort()).number
            builder.targets[GATEWAY.name] = f"127.0.0.1:{builder.gateway_port}"
            await _serve_inner_services(builder, telemetry, stack)
            build = GATEWAY.build
        else:
            build = _in_process(builder, telemetry)
        settings = builder.settings(GATEWAY, **{"metrics_port": 0, **gateway})
        assert isinstance(settings, GatewaySettings)
        organization = await ensure_organization_key(settings)
        project = await ensure_local_project(settings, organization.secret)
        with (
            patch.object(core_memory_main, "FILE_POLL_S", 0.1),
            # The cache does not expire during a test, so that an agent's turns cost the same.
            patch.object(timing, "AGENT_CACHE_S", 3_600.0),
        ):
            server = await stack.enter_async_context(serving(build, settings, telemetry=telemetry))
        system = System(shape, server.address, project.secret, project.project_id, model)
        system.urls = builder.urls
        system.partition_urls = builder.partition_urls
        system.gateway_settings = settings
        system.organization_key = organization.secret
        if settings.http_port is not None:
            system.http_url = f"http://{settings.host}:{settings.http_port}"
        system.metrics_url = f"http://{settings.host}:{server.metrics_port}"
        system.meter = Meter(sql, telemetry)
        stack.push_async_callback(system.channel.close)
        yield system


class _Builder:
    """Makes the settings of the services."""

    def __init__(self, urls: dict[str, Any], vectors: EmbeddedVectors, model: ModelServer) -> None:
        self.urls = urls
        self.partition_urls: dict[str, dict[str, Any]] = {}
        self.targets: dict[str, str] = {}
        self.gateway_port = 0
        self.private_key, self.public_key = generate_key_pair()
        self.worker_key, self.worker_public_key = generate_key_pair()
        self.master_key = generate_master_key()
        self._vectors = vectors
        self._model = model

    @classmethod
    async def make(
        cls,
        databases: Any,
        vectors: EmbeddedVectors,
        model: ModelServer,
        partitions: Mapping[str, Any],
    ) -> _Builder:
        urls = {spec.name: await databases.of(spec.migrations) for spec in SERVICES}
        builder = cls(urls, vectors, model)
        for name, further in partitions.items():
            builder.partition_urls[name] = {
                spec.name: await further.of(spec.migrations, name) for spec in SERVICES
            }
        return builder

    @property
    def databases(self) -> set[tuple[int | None, str | None]]:
        """Ports and names of the databases of all services and partitions."""
        return {
            port_and_name(urls.service_url)
            for of_services in (self.urls, *self.partition_urls.values())
            for urls in of_services.values()
        }

    def settings(self, spec: ServiceSpec, **more: Any) -> Any:
        values: dict[str, Any] = {
            "port": 0,
            "token_public_keys": self.public_key,
            "targets": dict(self.targets),
            "drain_s": 0.0,
            "grace_s": 1.0,
        }
        if spec.name in self.urls:
            values["database_url"] = self.urls[spec.name].service_url
            values["worker_database_url"] = self.urls[spec.name].worker_url
            # The pool size of `strata up`. A project may use three of the connections, so that four
            # concurrent calls exceed its share.
            values["pool_size"] = 4
            further = {name: urls[spec.name] for name, urls in self.partition_urls.items()}
            values["partition_database_urls"] = {
                name: database.service_url for name, database in further.items()
            }
            values["partition_worker_database_urls"] = {
                name: database.worker_url for name, database in further.items()
            }
        if spec.name in {"recall", "archival"}:
            values["qdrant_url"] = self._vectors.url
            values["qdrant_api_key"] = self._vectors.api_key
        match spec.name:
            case "core_memory":
                values["worker_token_key"] = self.worker_key
            case "archival":
                values["file_worker_public_keys"] = self.worker_public_key
            case "tool_execution":
                values["master_keys"] = (self.master_key,)
                values["mcp_local"] = True
            case "agent_loop":
                values["model_endpoints"] = model_endpoints(self._model)
                values["default_model"] = "openai/test-model"
                values["master_keys"] = (self.master_key,)
            case "gateway":
                values["port"] = self.gateway_port
                values["reuse_port"] = self.gateway_port > 0
                values["token_private_key"] = self.private_key
                values["key_pepper"] = "pepper of the tests"
                values["calls_per_second"] = 0.0
            case _:
                pass
        return spec.settings(**values, **more)


async def _serve_inner_services(
    builder: _Builder, telemetry: Telemetry, stack: AsyncExitStack
) -> None:
    # Each service calls the services before it; core memory calls archival.
    for spec in sorted(INNER_SERVICES, key=lambda spec: spec.name != "archival"):
        running = serving(spec.build, builder.settings(spec), telemetry=telemetry)
        with patch.object(core_memory_main, "FILE_POLL_S", 0.1):
            server = await stack.enter_async_context(running)
        builder.targets[spec.name] = server.address


def _in_process(builder: _Builder, telemetry: Telemetry) -> Any:
    """Starts the services like `strata up`: in one in-process network, the gateway last."""

    async def build(settings: GatewaySettings, _: Wiring, stack: AsyncExitStack) -> Service:
        network = await stack.enter_async_context(
            InProcessNetwork(TokenVerifier(builder.public_key), telemetry=telemetry)
        )
        for spec in INNER_SERVICES:
            service_settings = builder.settings(spec)
            service = await spec.build(service_settings, network, stack)
            network.register(service, service_settings)
            await stack.enter_async_context(BackgroundTasks(service))
        gateway = await GATEWAY.build(settings, network, stack)
        network.register(gateway, settings)
        return gateway

    return build
