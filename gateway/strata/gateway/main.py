"""The gateway as a process, and how its parts are put together."""

from __future__ import annotations

from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, version

from strata.api.gateway.v1 import admin_service_pb2_grpc, run_service_pb2_grpc
from strata.gateway.auth.authenticator import ApiKeyAuthenticator
from strata.gateway.auth.domain import Hasher
from strata.gateway.auth.of_runs import RunAuthenticator
from strata.gateway.auth.policy import policy_of
from strata.gateway.auth.rate import RateLimiter
from strata.gateway.auth.store import PostgresAdminStore, PostgresKeyLookup
from strata.gateway.migrations import MIGRATIONS
from strata.gateway.proxy import proxied_service
from strata.gateway.registry import (
    ADMIN_SERVICE,
    PROXIED_SERVICES,
    RUN_SERVICE,
    public_services,
)
from strata.gateway.runs.clients import AgentDirectory, GrpcToolVersions, GrpcTurnClient
from strata.gateway.runs.defaults import DefaultAnswers
from strata.gateway.runs.dispatcher import Dispatcher, DispatchTerms
from strata.gateway.runs.follow import RunFollower
from strata.gateway.runs.live import RunHub
from strata.gateway.runs.store import LeaseTerms, PostgresRunStore
from strata.gateway.servicers.admin_service import AdminServicer
from strata.gateway.servicers.run_service import RunServicer
from strata.gateway.settings import GatewaySettings
from strata.shared.auth import TokenSigner
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.room import Room, Service, Wiring
from strata.shared.server import run_room

NAME = "gateway"
_DELETE_AGENT = "/strata.api.agent_loop.v1.AgentService/DeleteAgent"


async def build(settings: GatewaySettings, wiring: Wiring, stack: AsyncExitStack) -> Room:
    """Builds the gateway.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``).
        UnavailableError: The database cannot be reached.
        ValueError: The signing key or the pepper is not configured.
    """
    signer = TokenSigner(settings.private_key(), clock=wiring.clock)
    hasher = Hasher(settings.pepper())
    await MIGRATIONS.check(settings.database_url)
    database = Database(
        settings.database_url,
        pool_size=settings.pool_size,
        application_name="strata-gateway",
        prepared_statements=settings.prepared_statements,
    )
    stack.push_async_callback(database.close)
    worker = Database(
        settings.worker_database_url,
        pool_size=settings.worker_pool_size,
        application_name="strata-gateway-worker",
        prepared_statements=settings.prepared_statements,
    )
    stack.push_async_callback(worker.close)

    owner = new_id("gateway")
    store = PostgresRunStore(
        database,
        worker,
        LeaseTerms(owner, settings.lease_s, settings.run_timeout_s, settings.open_runs_per_project),
    )
    if settings.only_replica:
        await store.release_others()
    agent_loop = wiring.channel("agent_loop")
    agents = AgentDirectory(agent_loop, wiring.clock, ttl_s=settings.agent_cache_s)
    hub = RunHub()
    dispatcher = Dispatcher(
        store,
        hub,
        GrpcTurnClient(agent_loop),
        signer,
        wiring.clock,
        owner=owner,
        terms=DispatchTerms(
            heartbeat_s=settings.heartbeat_s,
            poll_s=settings.poll_s,
            max_attempts=settings.max_attempts,
            max_runs=settings.runs_at_once,
        ),
        on_not_found=agents.forget,
    )
    stack.push_async_callback(dispatcher.close)
    defaults = DefaultAnswers(store, dispatcher.start, poll_s=settings.poll_s)
    follower = RunFollower(store, hub, poll_s=settings.poll_s)
    limiter = RateLimiter(
        wiring.clock, per_second=settings.calls_per_second, burst=settings.call_burst
    )
    keys = ApiKeyAuthenticator(
        PostgresKeyLookup(worker),
        hasher,
        signer,
        policy_of(public_services()),
        limiter,
        wiring.clock,
        ttl_s=settings.key_cache_s,
    )
    admin = AdminServicer(
        PostgresAdminStore(database, hasher),
        store,
        wiring.clock,
        version=release(),
        on_revoked=keys.forget,
    )
    runs = RunServicer(
        store,
        dispatcher,
        follower,
        agents,
        GrpcToolVersions(wiring.channel("tool_execution")),
        chain_limit=settings.chain_limit,
    )
    return Room(
        NAME,
        services=(
            Service(
                RUN_SERVICE.full_name, run_service_pb2_grpc.add_RunServiceServicer_to_server, runs
            ),
            Service(
                ADMIN_SERVICE.full_name,
                admin_service_pb2_grpc.add_AdminServiceServicer_to_server,
                admin,
            ),
            *(
                proxied_service(each, wiring.channel(room), {_DELETE_AGENT: agents.forget})
                for room, services in PROXIED_SERVICES.items()
                for each in services
            ),
        ),
        background=(dispatcher.keep_leases, dispatcher.take_over, defaults.keep_giving),
        authenticator=RunAuthenticator(keys, wiring.verifier, limiter),
    )


def release() -> str:
    """Returns the release of the server."""
    try:
        return version("strata-agents")
    except PackageNotFoundError:
        return "unreleased"


def main() -> None:
    """Runs the gateway until it is told to stop."""
    run_room(NAME, build, GatewaySettings())


if __name__ == "__main__":
    main()
