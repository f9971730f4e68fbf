"""The services behind the gateway and a scripted model API, over sockets or in process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from callers import TokenKeys
from chat_messages import user_message
from doubles.model_server import ModelServer
from run_events import RunEvents
from strata.agent_loop import main as agent_loop
from strata.agent_loop.migrations import MIGRATIONS as AGENT_LOOP
from strata.agent_loop.settings import AgentLoopSettings, EndpointSettings
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.agent_loop.v1 import group_service_pb2_grpc as group_grpc
from strata.api.agent_loop.v1 import model_service_pb2_grpc as model_grpc
from strata.api.agent_loop.v1 import prompt_service_pb2_grpc as prompt_grpc
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.agent_loop.v1 import turn_service_pb2_grpc as turn_grpc
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.core_memory.v1 import block_service_pb2_grpc as block_grpc
from strata.api.core_memory.v1 import context_service_pb2_grpc as context_grpc
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.archival import main as archival
from strata.archival.migrations import MIGRATIONS as ARCHIVAL
from strata.archival.settings import ArchivalSettings
from strata.core_memory import main as core_memory
from strata.core_memory.migrations import MIGRATIONS as CORE_MEMORY
from strata.core_memory.settings import CoreMemorySettings
from strata.recall import main as recall
from strata.recall.migrations import MIGRATIONS as RECALL
from strata.recall.settings import RecallSettings
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.context import use
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.request_stream import RequestStream
from strata.shared.secrets import generate_master_key
from strata.shared.server import serving
from strata.shared.service import BackgroundTasks
from strata.standalone.vectors import EmbeddedVectors
from strata.tool_execution import main as tool_execution
from strata.tool_execution.migrations import MIGRATIONS as TOOL_EXECUTION
from strata.tool_execution.settings import ToolExecutionSettings
from strata.tool_runner import main as tool_runner
from strata.tool_runner.settings import ToolRunnerSettings


@dataclass
class InnerServices:
    """Stubs of all services behind the gateway, called with tokens of a project."""

    model: ModelServer
    keys: TokenKeys
    channel: Callable[[str], Any]
    urls: dict[str, Any]
    prompts_folder: Path
    network: InProcessNetwork | None = None
    last: Requests | None = None

    def __post_init__(self) -> None:
        self.agents = agent_grpc.AgentServiceStub(self.channel("agent_loop"))
        self.turns = turn_grpc.TurnServiceStub(self.channel("agent_loop"))
        self.models = model_grpc.ModelServiceStub(self.channel("agent_loop"))
        self.prompts = prompt_grpc.PromptServiceStub(self.channel("agent_loop"))
        self.groups = group_grpc.GroupServiceStub(self.channel("agent_loop"))
        self.blocks = block_grpc.BlockServiceStub(self.channel("core_memory"))
        self.context = context_grpc.ContextServiceStub(self.channel("core_memory"))
        self.messages = message_grpc.MessageServiceStub(self.channel("recall"))
        self.windows = window_grpc.WindowServiceStub(self.channel("recall"))
        self.passages = passage_grpc.PassageServiceStub(self.channel("archival"))

    @contextmanager
    def signed_in(self, project_id: str | None = None) -> Iterator[str]:
        """Makes the calls of the block for a project, by default a new one; yields its id."""
        project_id = project_id or new_id("project")
        scopes = ["read", "write", "run", "secrets"]
        with self.acting(project_id, scopes):
            yield project_id

    @contextmanager
    def acting(self, project_id: str, scopes: Iterable[str]) -> Iterator[None]:
        """Makes the calls of the block for the project, with these scopes."""
        with use(self.keys.context(project_id, scopes=list(scopes))):
            yield

    async def make_agent(self, **fields: Any) -> agent_pb.Agent:
        """Creates an agent."""
        fields.setdefault("name", f"tester {new_id('x')[-8:]}")
        response = await self.agents.CreateAgent(agent_pb.CreateAgentRequest(**fields))
        agent: agent_pb.Agent = response.agent
        return agent

    async def update_agent(self, agent: agent_pb.Agent, **fields: Any) -> agent_pb.Agent:
        """Changes fields of an agent, and returns it."""
        request = agent_pb.UpdateAgentRequest(agent_id=agent.id, **fields)
        changed: agent_pb.Agent = (await self.agents.UpdateAgent(request)).agent
        return changed

    def dispatch(self, agent: agent_pb.Agent, *texts: str, **fields: Any) -> Any:
        """Dispatches a run; returns the call."""
        fields.setdefault("run_id", new_id("run"))
        fields.setdefault("attempt", 1)
        fields.setdefault("conversation_id", agent.default_conversation_id)
        request = turn_pb.ExecuteRunRequest(
            agent_id=agent.id, messages=[user_message(text) for text in texts], **fields
        )
        return self.execute(request)

    def execute(self, request: turn_pb.ExecuteRunRequest, stub: Any = None) -> Any:
        """Starts the call of a turn; `last` is its request stream, with which it is cancelled."""
        requests = self.last = Requests(request)
        turns: Any = stub or self.turns
        call = turns.ExecuteRun(requests)
        call.add_done_callback(lambda _: requests.close())
        return call

    async def run(self, agent: agent_pb.Agent, *texts: str, **fields: Any) -> RunEvents:
        """Runs a turn and returns all its events."""
        call = self.dispatch(agent, *texts, **fields)
        return RunEvents([response.event async for response in call if response.HasField("event")])

    async def window(self, agent: agent_pb.Agent, conversation_id: str = "") -> Any:
        """Returns the window of a conversation."""
        wanted = conversation_id or agent.default_conversation_id
        return (
            await self.windows.GetWindow(window_pb.GetWindowRequest(conversation_id=wanted))
        ).window


class Requests(RequestStream[turn_pb.ExecuteRunRequest]):
    """The request stream of a turn, open until its call has ended."""

    def cancel(self) -> None:
        """Cancels the run."""
        self.add(turn_pb.ExecuteRunRequest(cancel=True))


@asynccontextmanager
async def open_inner_services(
    databases: Any, vectors: EmbeddedVectors, transport: str, **tool_settings: Any
) -> AsyncIterator[InnerServices]:
    """Starts everything; `transport` is "sockets" or "inprocess"."""
    keys = TokenKeys.generate()
    urls = {
        name: await databases.of(migrations)
        for name, migrations in {
            "core_memory": CORE_MEMORY,
            "recall": RECALL,
            "archival": ARCHIVAL,
            "agent_loop": AGENT_LOOP,
            "tool_execution": TOOL_EXECUTION,
        }.items()
    }
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelServer())
        prompts = Path(stack.enter_context(TemporaryDirectory()))
        common: dict[str, Any] = {
            "port": 0,
            "token_public_keys": keys.public,
            "drain_s": 0.0,
            "grace_s": 0.2,
        }

        def of(name: str) -> dict[str, Any]:
            return {
                "database_url": urls[name].service_url,
                "worker_database_url": urls[name].worker_url,
                **common,
            }

        endpoints = (
            EndpointSettings(
                name="test",
                base_url=model.openai_url,
                models=("test-model",),
                first_event_timeout_s=10,
            ),
            EndpointSettings(
                name="claude",
                type="anthropic",
                base_url=model.anthropic_url,
                models=("test-model", "claude-sonnet-5"),
            ),
            EndpointSettings(
                name="blind",
                base_url=model.openai_url,
                models=("test-model",),
                images=False,
                context_window=8_000,
            ),
            # No `models` are configured, so the endpoint is asked for its list.
            EndpointSettings(name="listing", base_url=model.openai_url),
            EndpointSettings(
                name="studio", preset="lmstudio", base_url=model.openai_url, models=("test-model",)
            ),
        )
        packages = tool_settings.get("packages_path")
        tool_runner_settings = ToolRunnerSettings(packages_path=packages, **common)
        services: list[tuple[Any, Any]] = [
            (
                recall.build,
                RecallSettings(
                    qdrant_url=vectors.url, qdrant_api_key=vectors.api_key, **of("recall")
                ),
            ),
            (
                archival.build,
                ArchivalSettings(
                    qdrant_url=vectors.url, qdrant_api_key=vectors.api_key, **of("archival")
                ),
            ),
            (core_memory.build, CoreMemorySettings(**of("core_memory"))),
            (tool_runner.build, tool_runner_settings),
            (
                tool_execution.build,
                ToolExecutionSettings(
                    master_keys=(generate_master_key(),),
                    mcp_local=True,
                    **of("tool_execution"),
                    **tool_settings,
                ),
            ),
            (
                agent_loop.build,
                AgentLoopSettings(
                    model_endpoints=endpoints, prompts_path=prompts, **of("agent_loop")
                ),
            ),
        ]
        if transport == "inprocess":
            network = InProcessNetwork(keys.verifier)
            for build, settings in services:
                service = await build(settings, network, stack)
                network.register(service, settings)
                await stack.enter_async_context(BackgroundTasks(service))
            stack.push_async_callback(network.close)
            yield InnerServices(model, keys, network.channel, urls, prompts, network=network)
        else:
            factory = ChannelFactory()
            stack.push_async_callback(factory.close)
            # Unused address: no tool starts a run in these tests.
            targets: dict[str, str] = {"gateway": "127.0.0.1:1"}
            for build, settings in services:
                started = settings.model_copy(update={"targets": dict(targets)})
                server = await stack.enter_async_context(serving(build, started))
                name = build.__module__.split(".")[1]
                targets[name] = server.address

            def channel(service: str) -> Any:
                return factory.channel(targets[service], services_of(service))

            yield InnerServices(model, keys, channel, urls, prompts)
