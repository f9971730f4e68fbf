"""The parts that execute the runs of one partition."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from strata.gateway.compose.common import CommonParts
from strata.gateway.compose.databases import PartitionDatabases
from strata.gateway.groups.holders import SwarmHolders
from strata.gateway.groups.turns import GroupTurns
from strata.gateway.runs.clients import (
    GroupDirectory,
    GrpcToolVersions,
    GrpcTurnClient,
    TurnsByRunner,
)
from strata.gateway.runs.dispatch.attempts import DispatchTerms
from strata.gateway.runs.dispatch.dispatcher import Dispatcher
from strata.gateway.runs.domain import timing
from strata.gateway.runs.domain.memory_agents import MemoryBudget
from strata.gateway.runs.domain.quotas import RunQuotas
from strata.gateway.runs.events.live_run import RunHub
from strata.gateway.runs.events.run_follower import RunFollower
from strata.gateway.runs.events.run_watch import RunWatch
from strata.gateway.runs.ingestion import DocumentIngestion
from strata.gateway.runs.ingestion_worker import IngestionWorker
from strata.gateway.runs.run_recorder import RunRecorder
from strata.gateway.runs.store.base import LeaseTerms
from strata.gateway.runs.store.open_ingestions import PostgresOpenIngestions
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.gateway.servicers.runs import RunServicer
from strata.gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts that execute the runs of one partition.

    Attributes:
        store: Stores runs, their events and approvals.
        dispatcher: Accepts and dispatches runs.
        watch: Polls the runs that other gateways execute.
        follower: Reads the events of runs as they are stored.
        ingestion: Has memory agents read the files of attached folders.
        ingestion_worker: Repeats what it could not do after a run.
        servicer: Serves `RunService`.
    """

    store: PostgresRunStore
    dispatcher: Dispatcher
    watch: RunWatch
    follower: RunFollower
    ingestion: DocumentIngestion
    ingestion_worker: IngestionWorker
    servicer: RunServicer


async def build_runs(
    common: CommonParts, databases: PartitionDatabases, stack: AsyncExitStack
) -> RunParts:
    """Builds the parts; the stack closes them."""
    settings, wiring = common.settings, common.wiring
    agent_loop = wiring.channel("agent_loop")
    store = PostgresRunStore(
        databases.database, databases.worker, _lease_terms(settings, common.owner)
    )
    if settings.only_replica:
        await store.release_others()
    watch = RunWatch(store, pause_s=timing.FOLLOW_POLL_S)
    hub = RunHub(watch.notify)
    follower = RunFollower(store, hub, watch, common.peers, poll_s=timing.POLL_S)
    group_turns = GroupTurns(store, follower, SwarmHolders(agent_loop))
    open_ingestions = PostgresOpenIngestions(databases.database, databases.worker)
    ingestion = DocumentIngestion(
        store,
        open_ingestions,
        agent_loop,
        wiring.channel("core_memory"),
        files_per_agent=settings.ingested_files_per_agent,
    )
    dispatcher = Dispatcher(
        store,
        hub,
        TurnsByRunner(GrpcTurnClient(agent_loop), group_turns),
        common.signer,
        wiring.clock,
        owner=common.owner,
        terms=_dispatch_terms(settings),
        on_not_found=common.agents.forget,
        on_memory_run=ingestion.memory_run_ended,
        telemetry=databases.telemetry,
        partition=databases.name,
    )
    stack.push_async_callback(dispatcher.close)
    servicer = RunServicer(
        store,
        dispatcher,
        follower,
        common.agents,
        GroupDirectory(agent_loop),
        GrpcToolVersions(wiring.channel("tool_execution")),
        ingestion,
        chain_limit=settings.chain_limit,
        prices=settings.model_prices,
        recorder=RunRecorder(store, agent_loop),
    )
    group_turns.connect(servicer.start_run, servicer.cancel_run)
    ingestion_worker = IngestionWorker(open_ingestions, store, ingestion, common.project_callers)
    return RunParts(store, dispatcher, watch, follower, ingestion, ingestion_worker, servicer)


def _lease_terms(settings: GatewaySettings, owner: str) -> LeaseTerms:
    return LeaseTerms(
        owner,
        timing.LEASE_S,
        settings.run_timeout_s,
        RunQuotas(settings.open_runs_per_project, settings.delayed_runs_per_project),
        settings.advertised_address,
    )


def _dispatch_terms(settings: GatewaySettings) -> DispatchTerms:
    return DispatchTerms(
        heartbeat_s=timing.HEARTBEAT_S,
        max_attempts=timing.MAX_ATTEMPTS,
        max_runs=settings.runs_at_once,
        max_memory_runs=settings.memory_runs_at_once,
        max_memory_runs_of_project=settings.memory_runs_at_once_per_project,
        memory_budget=MemoryBudget(
            settings.memory_tokens_per_hour, settings.memory_tokens_per_hour_per_project
        ),
    )
