"""Builds the gateway from its parts, and runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from strata.gateway.auth.domain import Hasher
from strata.gateway.compose.auth import AuthParts, build_auth
from strata.gateway.compose.common import build_common
from strata.gateway.compose.databases import open_databases
from strata.gateway.compose.forwarded_services import forwarded_services
from strata.gateway.compose.partition import PartitionParts, build_partition
from strata.gateway.runs_of_projects import RunsOfProjects
from strata.gateway.servicers.admin import AdminServicer
from strata.gateway.settings import GatewaySettings
from strata.shared.auth import TokenSigner
from strata.shared.partitioned_service import routed
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.release import release
from strata.shared.server import run_service
from strata.shared.service import GrpcService, Listener, Service, Wiring
from strata.shared.tracing.spans import Tracer

NAME = "gateway"


async def build(settings: GatewaySettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the gateway.

    Args:
        settings: Its settings.
        wiring: The shared parts of the process.
        stack: Closes the resources of the gateway.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``).
        UnavailableError: The database cannot be reached.
        ValueError: The signing key or the pepper is not configured.
    """
    signer = TokenSigner(settings.private_key(), clock=wiring.clock, verifier=wiring.verifier)
    hasher = Hasher(settings.pepper())
    databases = await open_databases(settings, wiring, stack)
    auth = build_auth(settings, wiring, signer, hasher, databases[DEFAULT_PARTITION])
    common = await build_common(settings, wiring, signer, auth.project_callers, stack)
    partitions = {
        name: await build_partition(common, opened, stack) for name, opened in databases.items()
    }
    call_hooks = {name: partition.call_hooks for name, partition in partitions.items()}
    return Service(
        NAME,
        services=(
            *_services_of_projects(partitions),
            GrpcService.of(_admin(settings, wiring, auth, partitions)),
            *forwarded_services(wiring, common.agents, call_hooks),
        ),
        background=[task for partition in partitions.values() for task in partition.background],
        authenticator=auth.authenticator,
        listeners=_http(settings, wiring.telemetry.tracer),
        from_clients=True,
    )


def _services_of_projects(partitions: Mapping[str, PartitionParts]) -> list[GrpcService]:
    """Returns the services whose calls act in a project; they route by the caller's partition."""
    return [
        routed({name: partition.services[index] for name, partition in partitions.items()})
        for index in range(len(partitions[DEFAULT_PARTITION].services))
    ]


def _admin(
    settings: GatewaySettings,
    wiring: Wiring,
    auth: AuthParts,
    partitions: Mapping[str, PartitionParts],
) -> AdminServicer:
    runs = {name: partition.runs for name, partition in partitions.items()}
    return AdminServicer(
        auth.store,
        RunsOfProjects(runs, auth.project_partitions.of),
        wiring.clock,
        version=release(),
        partitions=settings.project_partitions,
        on_revoked=auth.api_keys.forget,
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
