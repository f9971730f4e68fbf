"""The tool-execution service: its construction, and the entry point of its process."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.core_memory.v1 import block_service_pb2_grpc as block_grpc
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.api.gateway.v1 import run_service_pb2_grpc as run_grpc
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.tool_runner.v1 import sandbox_service_pb2_grpc as sandbox_grpc
from strata.shared.db.opening import open_database, open_worker_database
from strata.shared.partitioned_service import build_partitions
from strata.shared.search.engines import open_english_embedder
from strata.shared.server import run_service
from strata.shared.service import BackgroundTask, GrpcService, Service, Wiring
from strata.tool_execution.builtin.agents import AgentTools
from strata.tool_execution.builtin.code import CodeTools
from strata.tool_execution.builtin.code_with_tools import code_with_tools
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS, check_executors
from strata.tool_execution.builtin.files import FileTools
from strata.tool_execution.builtin.functions import FunctionTools
from strata.tool_execution.builtin.memory import MemoryTools
from strata.tool_execution.builtin.retrieval import ArchivalTools, ConversationSearch
from strata.tool_execution.builtin.summaries import ExpandSummary
from strata.tool_execution.builtin.voice_memory import StoreMemories
from strata.tool_execution.builtin.voice_search import SearchMemory
from strata.tool_execution.builtin.web_factory import open_web_tools
from strata.tool_execution.clients.peers import PeerChannel
from strata.tool_execution.clients.sandbox import SandboxClient
from strata.tool_execution.custom.agent_memory import BlockMemory
from strata.tool_execution.custom.executor import SandboxRunner, ToolRunners
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.execution.engine import CallExecutor, Executor
from strata.tool_execution.mcp.factory import open_mcp
from strata.tool_execution.migrations import MIGRATIONS
from strata.tool_execution.packages.factory import open_packages
from strata.tool_execution.registry.builtin_vectors import packaged_vectors
from strata.tool_execution.registry.search import ToolSearch
from strata.tool_execution.servicers import ExecutionServicer, McpServicer, ToolServicer
from strata.tool_execution.settings import ToolExecutionSettings
from strata.tool_execution.store import (
    PostgresMcpStore,
    PostgresSecretStore,
    PostgresSignInStore,
    PostgresToolStore,
)
from strata.tool_execution.store.request_table import REQUESTS

NAME = "tool_execution"
# Calls of one reply that run concurrently; few replies have as many, and further calls wait.
_MAX_PARALLEL_CALLS = 16


async def build(settings: ToolExecutionSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service.

    Args:
        settings: Settings of the service.
        wiring: Resources of the process that the service runs in.
        stack: Closes what the service opens.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``).
        UnavailableError: The database cannot be reached.
        ValueError: A master key is invalid, or the packages folder or the CA file of tools cannot
            be used.
    """
    return await build_partitions(_build, settings, wiring, stack)


async def _build(settings: ToolExecutionSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service for one partition."""
    await MIGRATIONS.check(settings.database_url, settings.partition)
    database = open_database(settings, NAME, wiring.telemetry, stack)
    store = PostgresToolStore(database)
    box = SecretBox(settings.envelope())
    packages = await open_packages(settings, stack)
    sandbox = SandboxClient(
        sandbox_grpc.SandboxServiceStub(wiring.channel("tool_runner")), wiring.telemetry
    )
    stack.push_async_callback(sandbox.close)
    runner = SandboxRunner(sandbox, box, packages=packages, network=settings.network_policy)
    core_memory = PeerChannel(wiring.channel("core_memory"), "core memory")
    engine = await _engine(settings, wiring, core_memory, sandbox, stack)
    servers = PostgresMcpStore(database)
    signed = PostgresSignInStore(database)
    mcp, transports, sign_ins = await open_mcp(settings, servers, signed, box, stack)
    runners = ToolRunners(runner, mcp, BlockMemory(block_grpc.BlockServiceStub(core_memory)))
    open_embedder = partial(
        open_english_embedder, settings.embedding_model_path, wiring.shared_resources, stack
    )
    tools = ToolServicer(
        BUILTIN_TOOLS,
        store,
        secrets=PostgresSecretStore(database),
        box=box,
        runners=runners,
        search=ToolSearch(store, BUILTIN_TOOLS, open_embedder, packaged_vectors),
        clock=wiring.clock,
        check_runner=sandbox.check,
    )
    execution = ExecutionServicer(
        BUILTIN_TOOLS,
        engine,
        store,
        runners,
        prepare=sandbox.prepare,
        nesting=code_with_tools(sandbox, settings.tool_timeout_s),
    )
    return Service(
        name=NAME,
        services=[
            GrpcService.of(tools),
            GrpcService.of(execution),
            GrpcService.of(McpServicer(servers, mcp, transports, sign_ins)),
        ],
        background=[mcp.close_idle_sessions_regularly, *_background(settings, wiring, stack)],
    )


async def _engine(
    settings: ToolExecutionSettings,
    wiring: Wiring,
    core_memory: PeerChannel,
    sandbox: SandboxClient,
    stack: AsyncExitStack,
) -> CallExecutor:
    """Wires the executors of the built-in tools."""
    recall = PeerChannel(wiring.channel("recall"), "recall")
    archival = PeerChannel(wiring.channel("archival"), "archival memory")
    gateway = PeerChannel(wiring.channel("gateway"), "gateway")
    messages = message_grpc.MessageServiceStub(recall)
    passages = passage_grpc.PassageServiceStub(archival)
    executors: list[Executor] = [
        FunctionTools(wiring.clock),
        MemoryTools(block_grpc.BlockServiceStub(core_memory)),
        FileTools(file_grpc.FileServiceStub(core_memory)),
        ConversationSearch(messages, wiring.clock),
        ExpandSummary(messages),
        ArchivalTools(passages),
        SearchMemory(messages, passages, wiring.clock),
        StoreMemories(passages),
        await open_web_tools(settings, stack),
        CodeTools(sandbox),
        AgentTools(
            run_grpc.RunServiceStub(gateway),
            agent_grpc.AgentServiceStub(gateway),
            wait_s=settings.agent_reply_timeout_s,
        ),
    ]
    check_executors(executors)
    return CallExecutor(
        BUILTIN_TOOLS,
        executors,
        wiring.clock,
        timeout=settings.tool_timeout_s,
        max_parallel=_MAX_PARALLEL_CALLS,
        # Longer than the wait for a reply, so that the tool can return a partial reply.
        timeouts=dict.fromkeys(
            AgentTools.names, settings.agent_reply_timeout_s + settings.tool_timeout_s
        ),
        telemetry=wiring.telemetry,
    )


def _background(
    settings: ToolExecutionSettings, wiring: Wiring, stack: AsyncExitStack
) -> list[BackgroundTask]:
    if not settings.worker_database_url:
        return []
    database = open_worker_database(settings, NAME, wiring.telemetry, stack, pool_size=1)
    return [partial(REQUESTS.delete_expired_hourly, database)]


def main() -> None:
    """Runs the service in its own process."""
    run_service(NAME, build, ToolExecutionSettings())


if __name__ == "__main__":
    main()
