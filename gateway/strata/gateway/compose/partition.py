"""The parts of the gateway for the projects of one partition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from strata.gateway.compose.common import CommonParts
from strata.gateway.compose.databases import PartitionDatabases
from strata.gateway.compose.forwarded_services import CallHooks
from strata.gateway.compose.runs import RunParts, build_runs
from strata.gateway.creations.store import PostgresAgentCreations
from strata.gateway.creations.worker import AgentCreations
from strata.gateway.deletions.store import PostgresAgentDeletions
from strata.gateway.deletions.worker import AgentDeletions
from strata.gateway.due_work import DueKind, DueWork
from strata.gateway.retention.store import PostgresRetention
from strata.gateway.retention.worker import RetentionTerms, RetentionWorker
from strata.gateway.runs.dispatch.default_answers import DefaultAnswers
from strata.gateway.runs.domain import timing
from strata.gateway.runs.store.run_queue import RunQueue
from strata.gateway.runs.usage_outside_runs import UsageOutsideRuns
from strata.gateway.runs_of_projects import RunsOfPartition
from strata.gateway.schedules.domain import ScheduleTerms
from strata.gateway.schedules.runner import ScheduleRunner
from strata.gateway.schedules.store import PostgresScheduleStore
from strata.gateway.servicers.run_follow import RunFollowServicer
from strata.gateway.servicers.schedules import ScheduleServicer
from strata.gateway.servicers.webhooks import WebhookServicer
from strata.gateway.webhooks.secrets import WebhookSecrets
from strata.gateway.webhooks.sender import SendTerms, WebhookSender
from strata.gateway.webhooks.store import PostgresWebhookStore
from strata.shared.service import BackgroundTask, GrpcService


@dataclass(frozen=True, slots=True)
class PartitionParts:
    """The parts of the gateway for the projects of one partition.

    Attributes:
        services: The services whose calls act in a project, the same for each partition.
        background: Endless tasks.
        runs: The runs of the partition, for calls that name a project.
        call_hooks: The work that belongs to forwarded calls.
    """

    services: Sequence[GrpcService]
    background: Sequence[BackgroundTask]
    runs: RunsOfPartition
    call_hooks: CallHooks


async def build_partition(
    common: CommonParts, databases: PartitionDatabases, stack: AsyncExitStack
) -> PartitionParts:
    """Builds the parts; the stack closes them."""
    runs = await build_runs(common, databases, stack)
    schedules = _build_schedules(common, databases, runs)
    webhooks = _build_webhooks(common, databases, runs)
    agents = _build_agents(common, databases, runs, schedules.servicer)

    usage = UsageOutsideRuns(runs.store)

    @asynccontextmanager
    async def attaching_folder(request: bytes) -> AsyncIterator[None]:
        async with runs.ingestion.recorded(request):
            yield
        runs.dispatcher.look()

    return PartitionParts(
        services=(
            GrpcService.of(runs.servicer),
            GrpcService.of(RunFollowServicer(runs.follower), listed=False),
            GrpcService.of(schedules.servicer),
            GrpcService.of(webhooks.servicer),
        ),
        background=_background(common, databases, runs, schedules, webhooks, agents),
        runs=RunsOfPartition(runs.store, schedules.store, runs.servicer.cancel_run_of),
        call_hooks=CallHooks(
            creating_agent=agents.creations.recorded,
            deleting_agent=agents.deletions.recorded,
            group_deleted=runs.servicer.cancel_runs_of_deleted_group,
            attaching_folder=attaching_folder,
            conversation_compacted=usage.of_compaction,
            model_probed=usage.of_probe,
        ),
    )


@dataclass(frozen=True, slots=True)
class _ScheduleParts:
    """The parts that store, serve and start schedules."""

    store: PostgresScheduleStore
    servicer: ScheduleServicer
    runner: ScheduleRunner


def _build_schedules(
    common: CommonParts, databases: PartitionDatabases, runs: RunParts
) -> _ScheduleParts:
    settings = common.settings
    terms = ScheduleTerms(
        settings.schedules_per_project,
        settings.schedule_min_interval_s,
        settings.schedule_history_days,
    )
    store = PostgresScheduleStore(databases.database, databases.worker, runs.store, terms)
    return _ScheduleParts(
        store, ScheduleServicer(store, common.agents), ScheduleRunner(store, runs.dispatcher.look)
    )


@dataclass(frozen=True, slots=True)
class _WebhookParts:
    """The parts that serve webhooks and send their deliveries."""

    servicer: WebhookServicer
    sender: WebhookSender


def _build_webhooks(
    common: CommonParts, databases: PartitionDatabases, runs: RunParts
) -> _WebhookParts:
    store = PostgresWebhookStore(
        databases.database, databases.worker, per_project=common.settings.webhooks_per_project
    )
    secrets = WebhookSecrets(common.settings.envelope())
    guard, fetcher = common.webhook_requests.guard, common.webhook_requests.fetcher
    return _WebhookParts(
        WebhookServicer(store, runs.store, common.agents, secrets, guard),
        WebhookSender(store, runs.store, secrets, fetcher, SendTerms(), databases.name),
    )


@dataclass(frozen=True, slots=True)
class _AgentParts:
    """The parts that complete interrupted creations and deletions of agents."""

    creations: AgentCreations
    deletions: AgentDeletions


def _build_agents(
    common: CommonParts,
    databases: PartitionDatabases,
    runs: RunParts,
    schedules: ScheduleServicer,
) -> _AgentParts:
    async def agent_deleted(agent_id: str) -> None:
        # First the schedules, so that none starts a run after the cancellation below.
        await schedules.disable_of_deleted(agent_id)
        await runs.ingestion.agent_deleted(agent_id)
        await runs.servicer.cancel_runs_of_deleted(agent_id)

    database, worker = databases.database, databases.worker
    agent_loop, callers = common.wiring.channel("agent_loop"), common.project_callers
    return _AgentParts(
        AgentCreations(PostgresAgentCreations(database, worker), agent_loop, callers),
        AgentDeletions(
            PostgresAgentDeletions(database, worker), agent_loop, callers, agent_deleted
        ),
    )


def _background(
    common: CommonParts,
    databases: PartitionDatabases,
    runs: RunParts,
    schedules: _ScheduleParts,
    webhooks: _WebhookParts,
    agents: _AgentParts,
) -> Sequence[BackgroundTask]:
    default_answers = DefaultAnswers(runs.store, runs.dispatcher.accept)
    due_work = DueWork(
        databases.worker,
        {
            DueKind.RUNS: runs.dispatcher.look,
            DueKind.APPROVALS: default_answers.wake,
            DueKind.SCHEDULES: schedules.runner.wake,
            DueKind.DELIVERIES: webhooks.sender.wake,
            DueKind.CREATIONS: agents.creations.wake,
            DueKind.DELETIONS: agents.deletions.wake,
            DueKind.INGESTIONS: runs.ingestion_worker.wake,
        },
        poll_s=timing.POLL_S,
    )
    return (
        runs.dispatcher.keep_leases,
        runs.dispatcher.take_over,
        due_work.keep_looking,
        default_answers.keep_answering,
        schedules.runner.keep_starting,
        webhooks.sender.keep_sending,
        agents.creations.keep_rolling_back,
        agents.deletions.keep_finishing,
        runs.ingestion_worker.keep_repeating,
        runs.watch.keep_polling,
        _retention(common, databases).keep_deleting,
        RunQueue(databases.worker, databases.telemetry).keep_measuring,
    )


def _retention(common: CommonParts, databases: PartitionDatabases) -> RetentionWorker:
    settings = common.settings
    terms = RetentionTerms(
        event_days=settings.run_events_days,
        delivery_days=settings.webhook_history_days,
        backlog=settings.webhook_backlog_per_project,
    )
    store = PostgresRetention(databases.database, databases.worker)
    return RetentionWorker(store, common.message_retention.days, terms)
