"""Builds the gateway from its parts, and runs it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial

from strata.api.recall.v1 import message_service_pb2
from strata.gateway.auth.authenticator import ApiKeyAuthenticator
from strata.gateway.auth.domain import Hasher
from strata.gateway.auth.partitions import ProjectPartitions
from strata.gateway.auth.policy import policy_of
from strata.gateway.auth.rate import RateLimiter
from strata.gateway.auth.run_tokens import RunTokenAuthenticator
from strata.gateway.auth.store import PostgresAdminStore, PostgresKeyLookup
from strata.gateway.creations.store import PostgresAgentCreations
from strata.gateway.creations.worker import AgentCreations
from strata.gateway.deletions.store import PostgresAgentDeletions
from strata.gateway.deletions.worker import AgentDeletions
from strata.gateway.due_work import DueKind, DueWork
from strata.gateway.groups.holders import SwarmHolders
from strata.gateway.groups.turns import GroupTurns
from strata.gateway.migrations import MIGRATIONS
from strata.gateway.project_callers import ProjectCallers
from strata.gateway.registry import (
    PROXIED_SERVICES,
    public_services,
)
from strata.gateway.retention.messages import MessageRetention
from strata.gateway.retention.store import PostgresRetention
from strata.gateway.retention.worker import RetentionTerms, RetentionWorker
from strata.gateway.runs.clients import (
    AgentDirectory,
    GroupDirectory,
    GrpcToolVersions,
    GrpcTurnClient,
    TurnsByRunner,
)
from strata.gateway.runs.dispatch.attempts import DispatchTerms
from strata.gateway.runs.dispatch.default_answers import DefaultAnswers
from strata.gateway.runs.dispatch.dispatcher import Dispatcher
from strata.gateway.runs.domain import timing
from strata.gateway.runs.domain.memory_agents import MemoryBudget
from strata.gateway.runs.domain.quotas import RunQuotas
from strata.gateway.runs.events.live_run import RunHub
from strata.gateway.runs.events.peers import Peers
from strata.gateway.runs.events.run_follower import RunFollower
from strata.gateway.runs.events.run_watch import RunWatch
from strata.gateway.runs.ingestion import DocumentIngestion
from strata.gateway.runs.run_recorder import RunRecorder
from strata.gateway.runs.store.run_queue import RunQueue
from strata.gateway.runs.store.runs import LeaseTerms, PostgresRunStore
from strata.gateway.runs_of_projects import RunsOfPartition, RunsOfProjects
from strata.gateway.schedules.domain import ScheduleTerms
from strata.gateway.schedules.runner import ScheduleRunner
from strata.gateway.schedules.store import PostgresScheduleStore
from strata.gateway.servicers.admin import AdminServicer
from strata.gateway.servicers.proxy import AfterSuccess, Around, proxied_service
from strata.gateway.servicers.run_follow import RunFollowServicer
from strata.gateway.servicers.runs import RunServicer
from strata.gateway.servicers.schedules import ScheduleServicer
from strata.gateway.servicers.webhooks import WebhookServicer
from strata.gateway.settings import GatewaySettings
from strata.gateway.webhooks.secrets import WebhookSecrets
from strata.gateway.webhooks.sender import SendTerms, WebhookSender
from strata.gateway.webhooks.store import PostgresWebhookStore
from strata.shared.auth import TokenSigner
from strata.shared.context import require_caller
from strata.shared.db import Database
from strata.shared.db.opening import open_database, open_worker_database
from strata.shared.ids import new_id
from strata.shared.partitioned_service import routed, settings_by_partition
from strata.shared.partitions import DEFAULT_PARTITION, not_configured
from strata.shared.release import release
from strata.shared.server import run_service
from strata.shared.service import BackgroundTask, GrpcService, Listener, Service, Wiring
from strata.shared.telemetry import Telemetry
from strata.shared.tracing.spans import Tracer
from strata.shared.web.fetcher import Fetcher, FetchLimits
from strata.shared.web.resolver import SystemResolver
from strata.shared.web.url_guard import Guard

NAME = "gateway"
# Only the status of a receiver's response counts.
_WEBHOOK_ANSWER_BYTES = 1024
_CREATE_AGENT = "/strata.api.agent_loop.v1.AgentService/CreateAgent"
_DELETE_AGENT = "/strata.api.agent_loop.v1.AgentService/DeleteAgent"
_ATTACH_FOLDER = "/strata.api.core_memory.v1.FileService/AttachFolder"
_DELETE_GROUP = "/strata.api.agent_loop.v1.GroupService/DeleteGroup"
_LIST_MESSAGES = "/strata.api.recall.v1.MessageService/ListMessages"
_SENT_AS_TEXT = message_service_pb2.ListMessagesRequest(
    send_message_as_text=True
).SerializeToString()


async def build(settings: GatewaySettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the gateway.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``).
        UnavailableError: The database cannot be reached.
        ValueError: The signing key or the pepper is not configured.
    """
    signer = TokenSigner(settings.private_key(), clock=wiring.clock, verifier=wiring.verifier)
    hasher = Hasher(settings.pepper())
    opened = await _open_partitions(settings, wiring, stack)
    first = opened[DEFAULT_PARTITION]
    # Organizations, projects and keys are in this database, and are read before the partition is
    # known.
    database = first.database.of_any_partition()
    projects = ProjectPartitions(database)
    limiter = RateLimiter(
        wiring.clock, per_second=settings.calls_per_second, burst=settings.call_burst
    )
    keys = ApiKeyAuthenticator(
        PostgresKeyLookup(first.worker, projects.note),
        hasher,
        signer,
        policy_of(public_services()),
        limiter,
        wiring.clock,
        ttl_s=settings.key_cache_s,
    )
    agent_loop = wiring.channel("agent_loop")
    agents = AgentDirectory(agent_loop, wiring.clock, ttl_s=timing.AGENT_CACHE_S)
    callers = ProjectCallers(signer, database)
    peers = Peers(settings.advertised_address)
    stack.push_async_callback(peers.close)
    common = _Common(
        settings,
        wiring,
        signer,
        new_id("gateway"),
        agents,
        peers,
        MessageRetention(wiring.channel("recall"), callers),
        callers,
        await _webhook_requests(settings, stack),
    )
    parts = {
        partition.name: await _runs_of_partition(common, partition, stack)
        for partition in opened.values()
    }
    admin = AdminServicer(
        PostgresAdminStore(database, first.worker, hasher, settings.project_partitions),
        RunsOfProjects({name: part.runs for name, part in parts.items()}, projects.of),
        wiring.clock,
        version=release(),
        partitions=settings.project_partitions,
        on_revoked=keys.forget,
    )

    def of_caller() -> _RunParts:
        partition = require_caller().partition
        if partition not in parts:
            raise not_configured(partition)
        return parts[partition]

    def creating_agent(request: bytes) -> AbstractAsyncContextManager[None]:
        return of_caller().creating_agent(request)

    def deleting_agent(request: bytes) -> AbstractAsyncContextManager[None]:
        return of_caller().deleting_agent(request)

    async def group_deleted(request: bytes) -> None:
        await of_caller().group_deleted(request)

    async def folder_attached(request: bytes) -> None:
        await of_caller().folder_attached(request)

    return Service(
        NAME,
        services=(
            *(
                routed({name: part.services[index] for name, part in parts.items()})
                for index in range(len(parts[DEFAULT_PARTITION].services))
            ),
            GrpcService.of(admin),
            *(
                proxied_service(
                    descriptor,
                    wiring.channel(service),
                    {_DELETE_AGENT: agents.forget},
                    {
                        _DELETE_GROUP: group_deleted,
                        _ATTACH_FOLDER: folder_attached,
                    },
                    {_LIST_MESSAGES: _SENT_AS_TEXT},
                    {_CREATE_AGENT: creating_agent, _DELETE_AGENT: deleting_agent},
                )
                for service, services in PROXIED_SERVICES.items()
                for descriptor in services
            ),
        ),
        background=[task for part in parts.values() for task in part.background],
        authenticator=RunTokenAuthenticator(keys, wiring.verifier, limiter),
        listeners=_http(settings, wiring.telemetry.tracer),
        from_clients=True,
    )


@dataclass(frozen=True, slots=True)
class _Partition:
    """A partition with open databases."""

    name: str
    database: Database
    worker: Database
    telemetry: Telemetry


async def _open_partitions(
    settings: GatewaySettings, wiring: Wiring, stack: AsyncExitStack
) -> dict[str, _Partition]:
    opened = {}
    for name, own in settings_by_partition(settings).items():
        await MIGRATIONS.check(own.database_url, name)
        several = len(settings.partitions) > 1
        telemetry = wiring.telemetry.of_partition(name) if several else wiring.telemetry
        database = open_database(own, NAME, telemetry, stack)
        worker = open_worker_database(
            own, NAME, telemetry, stack, pool_size=settings.worker_pool_size
        )
        opened[name] = _Partition(name, database, worker, telemetry)
    return opened


@dataclass(frozen=True, slots=True)
class _Common:
    """Resources that the parts of all partitions share."""

    settings: GatewaySettings
    wiring: Wiring
    signer: TokenSigner
    owner: str
    agents: AgentDirectory
    peers: Peers
    retention: MessageRetention
    callers: ProjectCallers
    webhooks: _WebhookRequests


@dataclass(frozen=True, slots=True)
class _WebhookRequests:
    """The objects that check and send the requests of webhooks."""

    guard: Guard
    fetcher: Fetcher


@dataclass(frozen=True, slots=True)
class _RunParts:
    """The parts of the gateway for the projects of one partition.

    Attributes:
        services: The services whose calls act in a project, the same for each partition.
        background: Endless tasks.
        runs: The runs of the partition, for calls that name a project.
        creating_agent: The context in which an agent is created, by the request.
        deleting_agent: The context in which an agent is deleted, by the request.
        group_deleted: Awaited with the request after a group was deleted.
        folder_attached: Awaited with the request after a folder was attached.
    """

    services: Sequence[GrpcService]
    background: Sequence[BackgroundTask]
    runs: RunsOfPartition
    creating_agent: Around
    deleting_agent: Around
    group_deleted: AfterSuccess
    folder_attached: AfterSuccess


async def _webhook_requests(settings: GatewaySettings, stack: AsyncExitStack) -> _WebhookRequests:
    resolver = SystemResolver()
    stack.callback(resolver.close)
    guard = Guard(
        resolver,
        private_networks=settings.webhook_private_networks,
        ports=settings.webhook_ports,
    )
    limits = FetchLimits(
        total_s=settings.webhook_timeout_s, redirects=0, body_bytes=_WEBHOOK_ANSWER_BYTES
    )
    fetcher = await stack.enter_async_context(
        Fetcher(guard, limits, user_agent=f"Strata/{release()}")
    )
    return _WebhookRequests(guard, fetcher)


async def _runs_of_partition(
    common: _Common, partition: _Partition, stack: AsyncExitStack
) -> _RunParts:
    """Builds the parts for the projects of one partition."""
    settings, wiring = common.settings, common.wiring
    database, worker = partition.database, partition.worker
    store = PostgresRunStore(
        database,
        worker,
        LeaseTerms(
            common.owner,
            timing.LEASE_S,
            settings.run_timeout_s,
            RunQuotas(settings.open_runs_per_project, settings.delayed_runs_per_project),
            settings.advertised_address,
        ),
    )
    if settings.only_replica:
        await store.release_others()
    agent_loop = wiring.channel("agent_loop")
    watch = RunWatch(store, pause_s=timing.FOLLOW_POLL_S)
    hub = RunHub(watch.notify)
    follower = RunFollower(store, hub, watch, common.peers, poll_s=timing.POLL_S)
    group_turns = GroupTurns(store, follower, SwarmHolders(agent_loop))
    ingestion = DocumentIngestion(
        store,
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
        terms=DispatchTerms(
            heartbeat_s=timing.HEARTBEAT_S,
            max_attempts=timing.MAX_ATTEMPTS,
            max_runs=settings.runs_at_once,
            max_memory_runs=settings.memory_runs_at_once,
            max_memory_runs_of_project=settings.memory_runs_at_once_per_project,
            memory_budget=MemoryBudget(
                settings.memory_tokens_per_hour, settings.memory_tokens_per_hour_per_project
            ),
        ),
        on_not_found=common.agents.forget,
        on_memory_run=ingestion.memory_run_ended,
        telemetry=partition.telemetry,
        partition=partition.name,
    )
    stack.push_async_callback(dispatcher.close)
    queue = RunQueue(worker, partition.telemetry)
    defaults = DefaultAnswers(store, dispatcher.accept)
    runs = RunServicer(
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
    group_turns.connect(runs.start_run, runs.cancel_run)
    schedule_store = PostgresScheduleStore(
        database,
        worker,
        store,
        ScheduleTerms(
            settings.schedules_per_project,
            settings.schedule_min_interval_s,
            settings.schedule_history_days,
        ),
    )
    schedules = ScheduleServicer(schedule_store, common.agents)
    schedule_runner = ScheduleRunner(schedule_store, dispatcher.look)

    webhook_store = PostgresWebhookStore(
        database, worker, per_project=settings.webhooks_per_project
    )
    webhook_secrets = WebhookSecrets(settings.envelope())
    webhooks = WebhookServicer(
        webhook_store, store, common.agents, webhook_secrets, common.webhooks.guard
    )
    webhook_sender = WebhookSender(
        webhook_store,
        store,
        webhook_secrets,
        common.webhooks.fetcher,
        SendTerms(),
        partition.name,
    )

    async def agent_deleted(agent_id: str) -> None:
        # First the schedules, so that none starts a run after the cancellation below.
        await schedules.disable_of_deleted(agent_id)
        await ingestion.agent_deleted(agent_id)
        await runs.cancel_runs_of_deleted(agent_id)

    creations = AgentCreations(PostgresAgentCreations(database, worker), agent_loop, common.callers)
    deletions = AgentDeletions(
        PostgresAgentDeletions(database, worker), agent_loop, common.callers, agent_deleted
    )
    due_work = DueWork(
        worker,
        {
            DueKind.RUNS: dispatcher.look,
            DueKind.APPROVALS: defaults.wake,
            DueKind.SCHEDULES: schedule_runner.wake,
            DueKind.DELIVERIES: webhook_sender.wake,
            DueKind.CREATIONS: creations.wake,
            DueKind.DELETIONS: deletions.wake,
        },
        poll_s=timing.POLL_S,
    )

    retention = RetentionWorker(
        PostgresRetention(database, worker),
        common.retention.days,
        RetentionTerms(
            event_days=settings.run_events_days,
            delivery_days=settings.webhook_history_days,
            backlog=settings.webhook_backlog_per_project,
        ),
    )

    async def folder_attached(request: bytes) -> None:
        await ingestion.folder_attached(request)
        dispatcher.look()

    return _RunParts(
        services=(
            GrpcService.of(runs),
            GrpcService.of(RunFollowServicer(follower), listed=False),
            GrpcService.of(schedules),
            GrpcService.of(webhooks),
        ),
        background=(
            dispatcher.keep_leases,
            dispatcher.take_over,
            due_work.keep_looking,
            defaults.keep_answering,
            schedule_runner.keep_starting,
            webhook_sender.keep_sending,
            creations.keep_rolling_back,
            deletions.keep_finishing,
            watch.keep_polling,
            retention.keep_deleting,
            queue.keep_measuring,
        ),
        runs=RunsOfPartition(store, schedule_store, runs.cancel_run_of),
        creating_agent=creations.recorded,
        deleting_agent=deletions.recorded,
        group_deleted=runs.cancel_runs_of_deleted_group,
        folder_attached=folder_attached,
    )


def _http(settings: GatewaySettings, tracer: Tracer | None) -> Sequence[Listener]:
    if settings.http_port is None:
        return ()
    # Loads a second implementation of protobuf, which only HTTP needs.
    from strata.gateway.http.application import http_application  # noqa: PLC0415
    from strata.shared.http_listener import HttpListener  # noqa: PLC0415

    application = partial(
        http_application,
        max_message_bytes=settings.limits.max_message_bytes,
        origins=settings.http_origins,
        console_secret=settings.pepper() if settings.console else "",
        public_url=settings.http_public_url,
        tracer=tracer,
    )
    return (HttpListener(application, settings.tcp_host, settings.http_port, settings.tls),)


def main() -> None:
    """Runs the gateway until it is stopped."""
    run_service(NAME, build, GatewaySettings())


if __name__ == "__main__":
    main()
