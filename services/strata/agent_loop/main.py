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
from strata.agent_loop.servicers.unfinished_agents import UnfinishedAgentServicer
from strata.agent_loop.settings import AgentLoopSettings
from strata.agent_loop.store import (
    Housekeeping,
    PostgresAgentStore,
    PostgresJournal,
    PostgresModelKeys,
)
from strata.agent_loop.store.groups import PostgresGroupStore
from strata.shared.db.opening import open_database, open_worker_database
from strata.shared.partitioned_service import build_partitions
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
    return await build_partitions(_build, settings, wiring, stack)


async def _build(settings: AgentLoopSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service for one partition."""
    await MIGRATIONS.check(settings.database_url, settings.partition)
    database = open_database(settings, NAME, wiring.telemetry, stack)
    factory = await stack.enter_async_context(
        ModelFactory(telemetry=wiring.telemetry, slow_s=settings.slow_model_call_s)
    )
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
        telemetry=wiring.telemetry,
    )
    groups = PostgresGroupStore(database)
    turns = TurnServicer(ports, groups, DetachTerms())
    stack.push_async_callback(turns.close)
    keys = PostgresModelKeys(database)
    lifecycle = AgentLifecycle(
        store,
        memory,
        recall,
        archival,
        tools,
        models=provider,
        tokens=tokens,
        clock=wiring.clock,
        keys=keys,
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
        next_requests.inspect, provider, recall, tokens, wiring.clock, wiring.telemetry
    )
    prompts = PromptLibrary(settings.prompts_path)
    return Service(
        name=NAME,
        services=[
            GrpcService.of(servicer)
            for servicer in (
                AgentServicer(lifecycle, next_requests, store, tokens, manual_compaction, prompts),
                GroupServicer(GroupLifecycle(groups, memory), groups),
                ModelServicer(provider, keyring, keys),
                PromptServicer(prompts),
                turns,
                UnfinishedAgentServicer(lifecycle),
            )
        ],
        background=[provider.preload, *_background(settings, wiring, stack)],
    )


def _background(
    settings: AgentLoopSettings, wiring: Wiring, stack: AsyncExitStack
) -> list[BackgroundTask]:
    if not settings.worker_database_url:
        return []
    database = open_worker_database(settings, NAME, wiring.telemetry, stack, pool_size=1)
    keeping = Housekeeping(
        database,
        journals=timedelta(days=settings.journal_days),
    )
    return [keeping.keep_cleaning]


def main() -> None:
    """Runs the service in a separate process."""
    run_service(NAME, build, AgentLoopSettings())


if __name__ == "__main__":
    main()
