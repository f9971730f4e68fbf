"""Where the service's code runs: in a sandbox of this process, or in a runner beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from strata.api.tool_runner.v1 import sandbox_service_pb2_grpc as pb_grpc
from strata.shared.service import Wiring
from strata.tool_execution.domain.sandbox import Sandbox
from strata.tool_execution.egress.wiring import ca_file, open_proxies
from strata.tool_execution.runner.client import RemoteSandbox
from strata.tool_execution.sandbox.jail import JailConfig, JailSandbox
from strata.tool_execution.settings import ToolExecutionSettings

RUNNER = "tool_runner"


def sandbox_starter(
    settings: ToolExecutionSettings,
    wiring: Wiring,
    environments: Path | None,
    stack: AsyncExitStack,
) -> Callable[[], Awaitable[Sandbox]]:
    """Returns what starts the sandbox.

    With a runner among the targets there is no other way: if it is not there, nothing runs.

    Args:
        settings: Of the service.
        wiring: Has the channel to the runner.
        environments: Folder with the packages of tools; None for none.
        stack: Closes what the sandbox of this process needs.
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
