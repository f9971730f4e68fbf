"""The tool-execution service on an embedded PostgreSQL, behind a real socket.

The tool runner is in the same process, as in `strata up`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc.aio

from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as execution_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.api.tool_execution.v1 import tool_service_pb2_grpc as tool_grpc
from strata.shared.auth import TokenSigner, TokenVerifier, generate_key_pair
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.context import RequestContext, use
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.migrate import RolePasswords
from strata.shared.server import serving
from strata.shared.service import Service, Wiring
from strata.standalone.postgres import EmbeddedPostgres
from strata.tool_execution.main import build
from strata.tool_execution.migrations import MIGRATIONS
from strata.tool_execution.settings import ToolExecutionSettings
from strata.tool_runner.main import build_started
from strata.tool_runner.settings import ToolRunnerSettings

_PASSWORDS = RolePasswords("benchmark-service", "benchmark-worker")
# A trivial tool makes no calls to other services.
_NOBODY = dict.fromkeys(("gateway", "core_memory", "recall", "archival"), "dns:///127.0.0.1:9")
_RUNNER = "tool_runner"


@dataclass(frozen=True, slots=True)
class ToolsService:
    """The stubs of the tool service."""

    tools: tool_grpc.ToolServiceStub
    execution: execution_grpc.ExecutionServiceStub
    agent: str
    sign_in: Callable[[], AbstractContextManager[RequestContext]]
    """Returns a context manager; calls in its block belong to another, new project."""

    async def put(self, source: str) -> None:
        """Stores a tool."""
        await self.tools.UpsertTool(
            tool_pb.UpsertToolRequest(request_id=new_id("request"), source_code=source)
        )

    async def execute(self, name: str, **arguments: int) -> str:
        """Runs one call as a turn does; returns the packed return for the model."""
        step = new_id("step")
        request = execution_pb.ExecuteToolsRequest(
            agent_id=self.agent,
            conversation_id=new_id("conversation"),
            run_id=new_id("run"),
            step_id=step,
            allowed_tools=[name],
            calls=[
                execution_pb.ToolCall(
                    tool_call_id="call-1",
                    name=name,
                    arguments=json.dumps(arguments),
                    idempotency_key=f"{step}/call-1",
                )
            ],
        )
        async for event in self.execution.ExecuteTools(request):
            if event.HasField("finished"):
                return str(event.finished.tool_return.content)
        raise RuntimeError("the call has no end")


def _folder(stack: AsyncExitStack) -> Path:
    made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strata-tools-")))
    # PostgreSQL runs as another user when we are root, and must get to its data.
    made.chmod(0o711)
    return made


class _WiringWithRunner:
    """The wiring of a service whose process has the tool runner as well.

    Args:
        network: Has the tool runner.
        others: The channels to the other services.
    """

    def __init__(self, network: InProcessNetwork, wiring: Wiring) -> None:
        self.verifier = network.verifier
        self.clock = network.clock
        self.telemetry = network.telemetry
        self.shared_resources = network.shared_resources
        self._network = network
        self._wiring = wiring

    def channel(self, service: str) -> grpc.aio.Channel:
        """See `Wiring.channel`."""
        wiring = self._network if service == _RUNNER else self._wiring
        return wiring.channel(service)


async def _build_with_runner(
    settings: ToolExecutionSettings, wiring: Wiring, stack: AsyncExitStack
) -> Service:
    network = await stack.enter_async_context(
        InProcessNetwork(wiring.verifier, clock=wiring.clock, telemetry=wiring.telemetry)
    )
    network.register(await build_started(ToolRunnerSettings(), network, stack))
    return await build(settings, _WiringWithRunner(network, wiring), stack)


@asynccontextmanager
async def open_tools_service() -> AsyncIterator[ToolsService]:
    """Opens the service over an empty database."""
    async with AsyncExitStack() as stack:
        folder = _folder(stack)
        postgres = EmbeddedPostgres(folder / "postgres")
        await postgres.start()
        stack.push_async_callback(postgres.stop)
        await MIGRATIONS.upgrade(postgres.url(), _PASSWORDS)
        private, public = generate_key_pair()
        roles = MIGRATIONS.roles
        settings = ToolExecutionSettings(
            host=f"unix:{folder / 'socket'}",
            database_url=postgres.url(user=roles.service, password=_PASSWORDS.service),
            token_public_keys=public,
            targets=_NOBODY,
            drain_s=0,
        )
        server = await stack.enter_async_context(serving(_build_with_runner, settings))
        factory = ChannelFactory()
        stack.push_async_callback(factory.close)
        channel = factory.channel(server.address, services_of("tool_execution"))
        signer, verifier = TokenSigner(private), TokenVerifier(public)

        def sign_in() -> AbstractContextManager[RequestContext]:
            token = signer.mint(
                "benchmark", new_id("project"), "benchmark", ["write"], ttl=timedelta(days=1)
            )
            return use(RequestContext(caller=verifier.verify(token)))

        stack.enter_context(sign_in())
        yield ToolsService(
            tool_grpc.ToolServiceStub(channel),
            execution_grpc.ExecutionServiceStub(channel),
            new_id("agent"),
            sign_in,
        )
