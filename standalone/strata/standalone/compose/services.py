"""The table of the services, for starting them. Their settings and schemas are loaded with it."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from strata.agent_loop.migrations import MIGRATIONS as AGENT_LOOP_MIGRATIONS
from strata.agent_loop.settings import AgentLoopSettings
from strata.archival.migrations import MIGRATIONS as ARCHIVAL_MIGRATIONS
from strata.archival.settings import ArchivalSettings
from strata.core_memory.migrations import MIGRATIONS as CORE_MEMORY_MIGRATIONS
from strata.core_memory.settings import CoreMemorySettings
from strata.gateway.migrations import MIGRATIONS as GATEWAY_MIGRATIONS
from strata.gateway.settings import GatewaySettings
from strata.recall.migrations import MIGRATIONS as RECALL_MIGRATIONS
from strata.recall.settings import RecallSettings
from strata.shared.gc_freeze import one_collection
from strata.shared.migrate import ServiceMigrations
from strata.shared.service import Service, Wiring
from strata.shared.settings import ServiceSettings
from strata.tool_execution.migrations import MIGRATIONS as TOOL_EXECUTION_MIGRATIONS
from strata.tool_execution.settings import ToolExecutionSettings
from strata.tool_runner.settings import ToolRunnerSettings

_Build = Callable[[Any, Wiring, AsyncExitStack], Awaitable[Service]]


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """How to build one service.

    Attributes:
        name: The folder name of the service.
        build: Its ``build`` function, whose first call imports the service.
        settings: Its settings class.
    """

    name: str
    build: _Build
    settings: type[ServiceSettings]

    @property
    def module(self) -> str:
        """The module whose ``main`` runs the service in a separate process."""
        return _module_of(self.name)


@dataclass(frozen=True, slots=True)
class StoringServiceSpec(ServiceSpec):
    """A service with a schema in the database.

    Attributes:
        migrations: Its schema.
    """

    migrations: ServiceMigrations


def _module_of(service: str) -> str:
    return f"strata.{service}.main"


def _build_of(service: str) -> _Build:
    async def build(settings: Any, wiring: Wiring, stack: AsyncExitStack) -> Service:
        main = importlib.import_module(_module_of(service))
        built: Service = await main.build(settings, wiring, stack)
        return built

    return build


# The gateway is last, so that it accepts calls only when the services behind it do.
SERVICES = (
    StoringServiceSpec(
        "core_memory", _build_of("core_memory"), CoreMemorySettings, CORE_MEMORY_MIGRATIONS
    ),
    StoringServiceSpec("recall", _build_of("recall"), RecallSettings, RECALL_MIGRATIONS),
    StoringServiceSpec("archival", _build_of("archival"), ArchivalSettings, ARCHIVAL_MIGRATIONS),
    StoringServiceSpec(
        "tool_execution",
        _build_of("tool_execution"),
        ToolExecutionSettings,
        TOOL_EXECUTION_MIGRATIONS,
    ),
    StoringServiceSpec(
        "agent_loop", _build_of("agent_loop"), AgentLoopSettings, AGENT_LOOP_MIGRATIONS
    ),
    StoringServiceSpec("gateway", _build_of("gateway"), GatewaySettings, GATEWAY_MIGRATIONS),
)
"""The services with a schema."""
TOOL_RUNNER = ServiceSpec("tool_runner", _build_of("tool_runner"), ToolRunnerSettings)
# The runner comes before tool execution, so that it is closed after it.
INNER_SERVICES: tuple[ServiceSpec, ...] = (*SERVICES[:3], TOOL_RUNNER, *SERVICES[3:-1])
GATEWAY = SERVICES[-1]
ALL_SERVICES = (*INNER_SERVICES, GATEWAY)


def load_services() -> None:
    """Imports every service."""
    with one_collection():
        for spec in ALL_SERVICES:
            importlib.import_module(spec.module)
