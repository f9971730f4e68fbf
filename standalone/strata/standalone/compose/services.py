"""The table of the services, for starting them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from strata.agent_loop import main as agent_loop
from strata.agent_loop.migrations import MIGRATIONS as AGENT_LOOP_MIGRATIONS
from strata.agent_loop.settings import AgentLoopSettings
from strata.archival import main as archival
from strata.archival.migrations import MIGRATIONS as ARCHIVAL_MIGRATIONS
from strata.archival.settings import ArchivalSettings
from strata.core_memory import main as core_memory
from strata.core_memory.migrations import MIGRATIONS as CORE_MEMORY_MIGRATIONS
from strata.core_memory.settings import CoreMemorySettings
from strata.gateway import main as gateway
from strata.gateway.migrations import MIGRATIONS as GATEWAY_MIGRATIONS
from strata.gateway.settings import GatewaySettings
from strata.recall import main as recall
from strata.recall.migrations import MIGRATIONS as RECALL_MIGRATIONS
from strata.recall.settings import RecallSettings
from strata.shared.migrate import ServiceMigrations
from strata.shared.service import Service, Wiring
from strata.shared.settings import ServiceSettings
from strata.tool_execution import main as tool_execution
from strata.tool_execution.migrations import MIGRATIONS as TOOL_EXECUTION_MIGRATIONS
from strata.tool_execution.settings import ToolExecutionSettings
from strata.tool_runner import main as tool_runner
from strata.tool_runner.settings import ToolRunnerSettings


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """How to build one service.

    Attributes:
        name: The folder name of the service.
        build: Its ``build`` function.
        settings: Its settings class.
    """

    name: str
    build: Callable[[Any, Wiring, AsyncExitStack], Awaitable[Service]]
    settings: type[ServiceSettings]

    @property
    def module(self) -> str:
        """The module that ``python -m`` runs for the service in a separate process."""
        return f"strata.{self.name}.main"


@dataclass(frozen=True, slots=True)
class StoringServiceSpec(ServiceSpec):
    """A service with a schema in the database.

    Attributes:
        migrations: Its schema.
    """

    migrations: ServiceMigrations


# The gateway is last, so that it accepts calls only when the services behind it do.
SERVICES = (
    StoringServiceSpec(
        "core_memory", core_memory.build, CoreMemorySettings, CORE_MEMORY_MIGRATIONS
    ),
    StoringServiceSpec("recall", recall.build, RecallSettings, RECALL_MIGRATIONS),
    StoringServiceSpec("archival", archival.build, ArchivalSettings, ARCHIVAL_MIGRATIONS),
    StoringServiceSpec(
        "tool_execution", tool_execution.build, ToolExecutionSettings, TOOL_EXECUTION_MIGRATIONS
    ),
    StoringServiceSpec("agent_loop", agent_loop.build, AgentLoopSettings, AGENT_LOOP_MIGRATIONS),
    StoringServiceSpec("gateway", gateway.build, GatewaySettings, GATEWAY_MIGRATIONS),
)
"""The services with a schema."""
TOOL_RUNNER = ServiceSpec("tool_runner", tool_runner.build, ToolRunnerSettings)
# The runner comes before tool execution, so that it is closed after it.
INNER_SERVICES: tuple[ServiceSpec, ...] = (*SERVICES[:3], TOOL_RUNNER, *SERVICES[3:-1])
GATEWAY = SERVICES[-1]
ALL_SERVICES = (*INNER_SERVICES, GATEWAY)
