"""A service with several partitions: it is built once for each, and calls go to the caller's.

To its clients it is one service. Inside, the partitions are independent:
each has its own database connections, workers and collections of the vector index, as if it were a
replica for some of the projects. What has no rows (models, engines, channels) is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import grpc

from strata.shared import context
from strata.shared.auth import TokenVerifier
from strata.shared.clock import Clock
from strata.shared.partitions import not_configured
from strata.shared.service import Build, GrpcService, Service, SettingsT_contra, Wiring
from strata.shared.settings import ServiceSettings
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


@dataclass(frozen=True, slots=True)
class _PartitionWiring:
    """The wiring of a process, with metrics that have a label for the partition."""

    whole: Wiring
    telemetry: Telemetry

    @property
    def verifier(self) -> TokenVerifier:
        return self.whole.verifier

    @property
    def clock(self) -> Clock:
        return self.whole.clock

    @property
    def shared_resources(self) -> SharedResources:
        return self.whole.shared_resources

    def channel(self, service: str) -> grpc.aio.Channel:
        return self.whole.channel(service)


async def build_partitions(
    build: Build[SettingsT_contra],
    settings: SettingsT_contra,
    wiring: Wiring,
    stack: AsyncExitStack,
) -> Service:
    """Builds a service for all partitions of its settings.

    With one partition, the result is what `build` returns.

    Args:
        build: Builds the service for one partition. It is called with the settings of that
            partition only.
        settings: The settings with all partitions.
        wiring: The facilities of the process.
        stack: Closes what the service opens.

    Raises:
        ValueError: A partition has no URL of the worker role, although the default one has.
    """
    by_partition = settings_by_partition(settings)
    if len(by_partition) == 1:
        return await build(settings, wiring, stack)
    built: dict[str, Service] = {}
    for name, partition_settings in by_partition.items():
        view = _PartitionWiring(wiring, wiring.telemetry.of_partition(name))
        built[name] = await build(partition_settings, view, stack)
    first = next(iter(built.values()))
    return replace(
        first,
        services=[
            routed({name: service.services[index] for name, service in built.items()})
            for index in range(len(first.services))
        ],
        background=[task for service in built.values() for task in service.background],
    )


def settings_by_partition(settings: SettingsT) -> dict[str, SettingsT]:
    """Returns the settings of each partition by name, first the partition of `database_url`.

    Raises:
        ValueError: A partition has no URL of the worker role, although the default one has.
    """
    further = settings.partition_worker_database_urls
    if len(settings.partitions) > 1 and bool(settings.worker_database_url) != bool(further):
        raise ValueError(
            "set worker_database_url and partition_worker_database_urls, or neither of them"
        )
    return {name: settings.of_partition(name) for name in settings.partitions}


def routed(services: Mapping[str, GrpcService]) -> GrpcService:
    """Returns a gRPC service that routes calls to the service of the caller's partition.

    Args:
        services: The same service of each partition, by its name. A single one is returned.
    """
    first = next(iter(services.values()))
    if len(services) == 1:
        return first
    servicers = {name: service.servicer for name, service in services.items()}
    return replace(first, servicer=_Router(servicers))


class _Router:
    """A servicer that calls one of several, by the partition of the caller."""

    def __init__(self, servicers: Mapping[str, object]) -> None:
        self._servicers = servicers

    def __getattr__(self, method: str) -> Any:
        # Bound once, when the service is added to its server.
        methods = {name: getattr(servicer, method) for name, servicer in self._servicers.items()}

        def call(request: object, servicer_context: object) -> Any:
            caller = context.require_caller()
            partition = caller.partition
            if not caller.project_id:
                # An operator's call, which concerns all projects of the partition that it names;
                # any servicer refuses the name of another one.
                requested = getattr(request, "partition", "")
                partition = requested if requested in methods else partition
            if partition not in methods:
                raise not_configured(partition)
            return methods[partition](request, servicer_context)

        return call
