"""Creates the sandbox from the settings: in this process, or in a separate tool runner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from strata.api.tool_runner.v1 import sandbox_service_pb2_grpc as pb_grpc
from strata.shared.sandbox import Sandbox
from strata.shared.service import Wiring
from strata.tool_execution.clients.sandbox import RemoteSandbox
from strata.tool_execution.settings import ToolExecutionSettings
from strata.tool_runner.egress.factory import ca_file, open_proxies
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox

RUNNER = "tool_runner"


def sandbox_starter(
    settings: ToolExecutionSettings,
    wiring: Wiring,
    environments: Path | None,
    stack: AsyncExitStack,
) -> Callable[[], Awaitable[Sandbox]]:
    """Returns a function that starts the sandbox.

    If the targets contain a runner, code runs only there: there is no fallback to this process.

    Args:
        settings: Settings of the service.
        wiring: Provides the channel to the runner.
        environments: Folder with the packages of tools; None for none.
        stack: Closes the resources of a sandbox in this process.
    """
    if RUNNER in settings.targets:
        stub = pb_grpc.SandboxServiceStub(wiring.channel(RUNNER))
        return partial(RemoteSandbox.connect, stub)
    jail = JailConfig(
        environments=environments,
        proxies=open_proxies(settings, stack),
        ca_file=ca_file(settings),
    )
    return partial(JailSandbox.start, jail)
