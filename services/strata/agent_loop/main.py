"""Builds the agent loop service; the entry point of its process."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta

from strata.agent_loop.agents.groups import GroupLifecycle
from strata.agent_loop.agents.lifecycle import AgentLifecycle
from strata.agent_loop.agents.next_requests import NextRequests
from strata.agent_loop.agents.prompt_limits import PromptLimits
from strata.agent_loop.clients.archival import ArchivalClient
from strata.agent_loop.clients.core_memory import CoreMemoryClient
from strata.agent_loop.clients.image_fetcher import open_image_fetcher
from strata.agent_loop.clients.recall import RecallClient
from strata.agent_loop.clients.tool_execution import ToolClient
from strata.agent_loop.compaction.manual_compaction import ManualCompaction
from strata.agent_loop.loop.turn_ports import Ports
from strata.agent_loop.migrations import MIGRATIONS
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.keyring import Keyring
from strata.agent_loop.models.provider import ModelProvider
from strata.agent_loop.models.tokens import TokenEstimator
from strata.agent_loop.prompts.library import PromptLibrary
from strata.agent_loop.servicers.agents import AgentServicer
from strata.agent_loop.servicers.groups import GroupServicer
from strata.agent_loop.servicers.models import ModelServicer
from strata.agent_loop.servicers.prompts import PromptServicer
from strata.agent_loop.servicers.turns import DetachTerms, TurnServicer
from strata.agent_loop.settings import AgentLoopSettings
from strata.agent_loop.store import (
    Housekeeping,
    PostgresAgentStore,
    PostgresJournal,
    PostgresModelKeys,
)
from strata.agent_loop.store.groups import PostgresGroupStore
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.agent_loop.v1 import group_service_pb2_grpc as group_grpc
from strata.api.agent_loop.v1 import model_service_pb2 as model_pb
from strata.api.agent_loop.v1 import model_service_pb2_grpc as model_grpc
from strata.api.agent_loop.v1 import prompt_service_pb2 as prompt_pb
from strata.api.agent_loop.v1 import prompt_service_pb2_grpc as prompt_grpc
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.agent_loop.v1 import turn_service_pb2_grpc as turn_grpc
from strata.shared.db import Database
from strata.shared.server import run_service
from strata.shared.service import BackgroundTask, GrpcService, Service, Wiring

NAME = "agent_loop"


async def build(settings: AgentLoopSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service.

    Args:
        settings: Its settings.
        wiring: The process that it is built in.
        stack: Closes what the service opens.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``).
        UnavailableError: The database cannot be reached.
        ValueError: A model endpoint or a master key is configured wrongly.
    """
    await MIGRATIONS.check(settings.database_url)
    database = Database(
        settings.database_url,
        pool_size=settings.pool_size,
        application_name="strata-agent-loop",
        prepared_statements=settings.prepared_statements,
    )
    stack.push_async_callback(database.close)
    factory = await stack.enter_async_context(ModelFactory())
    keyring = Keyring(settings.envelope())
    provider = ModelProvider(settings.registry(), factory, keyring)
    store = PostgresAgentStore(database)
    memory = CoreMemoryClient(wiring.channel("core_memory"))
    recall = RecallClient(wiring.channel("recall"), settings.image_cache_bytes)
    tools = ToolClient(wiring.channel("tool_execution"))
    archival = ArchivalClient(wiring.channel("archival"))
    tokens = TokenEstimator()
    ports = Ports(
        agents=store,
        memory=memory,
        recall=recall,
        tools=tools,
        archival=archival,
        journal=PostgresJournal(database),
        models=provider,
        tokens=tokens,
        clock=wiring.clock,
        images=await open_image_fetcher(settings, stack) if settings.fetch_images else None,
        approval_s=settings.approval_timeout_s,
    )
    groups = PostgresGroupStore(database)
    turns = TurnServicer(ports, groups, DetachTerms())
    stack.push_async_callback(turns.close)
    keys = PostgresModelKeys(database)
    lifecycle = AgentLifecycle(
        store, memory, recall, archival, tools, provider, tokens, wiring.clock, keys
    )
    next_requests = NextRequests(
        store,
        memory,
        recall,
        archival,
        tools,
        PromptLimits(store, memory, tools, provider, tokens, wiring.clock),
        wiring.clock,
    )
    manual_compaction = ManualCompaction(
        next_requests.inspect, provider, recall, tokens, wiring.clock
    )
    prompts = PromptLibrary(settings.prompts_path)
    return Service(
        name=NAME,
        services=_services(
            AgentServicer(lifecycle, next_requests, store, tokens, manual_compaction, prompts),
            ModelServicer(provider, keyring, keys),
            PromptServicer(prompts),
            GroupServicer(GroupLifecycle(groups, memory), groups),
            turns,
        ),
        background=[provider.preload, *_background(settings, stack)],
    )


def _services(
    agents: AgentServicer,
    models: ModelServicer,
    prompts: PromptServicer,
    groups: GroupServicer,
    turns: TurnServicer,
) -> list[GrpcService]:
    return [
        GrpcService(
            agent_pb.DESCRIPTOR.services_by_name["AgentService"].full_name,
            agent_grpc.add_AgentServiceServicer_to_server,
            agents,
        ),
        GrpcService(
            group_pb.DESCRIPTOR.services_by_name["GroupService"].full_name,
            group_grpc.add_GroupServiceServicer_to_server,
            groups,
        ),
        GrpcService(
            model_pb.DESCRIPTOR.services_by_name["ModelService"].full_name,
            model_grpc.add_ModelServiceServicer_to_server,
            models,
        ),
        GrpcService(
            prompt_pb.DESCRIPTOR.services_by_name["PromptService"].full_name,
            prompt_grpc.add_PromptServiceServicer_to_server,
            prompts,
        ),
        GrpcService(
            turn_pb.DESCRIPTOR.services_by_name["TurnService"].full_name,
            turn_grpc.add_TurnServiceServicer_to_server,
            turns,
        ),
    ]


def _background(settings: AgentLoopSettings, stack: AsyncExitStack) -> list[BackgroundTask]:
    if not settings.worker_database_url:
        return []
    database = Database(
        settings.worker_database_url,
        pool_size=1,
        application_name="strata-agent-loop-worker",
        prepared_statements=settings.prepared_statements,
    )
    stack.push_async_callback(database.close)
    keeping = Housekeeping(
        database,
        journals=timedelta(days=settings.journal_days),
    )
    return [keeping.keep_cleaning]


def main() -> None:
    """Runs the service in a process of its own."""
    run_service(NAME, build, AgentLoopSettings())


if __name__ == "__main__":
    main()
