"""The tool runner: construction of its service, and the entry point of its process."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from strata.api.tool_runner.v1 import sandbox_service_pb2 as sandbox_pb
from strata.shared.logs import get_logger
from strata.shared.metric_names import SANDBOX_RUNNING, SANDBOX_SPARES
from strata.shared.sandbox import Sandbox
from strata.shared.server import run_service
from strata.shared.service import GrpcService, Service, Wiring
from strata.shared.telemetry import Telemetry
from strata.tool_runner.egress.factory import ca_file, open_proxies
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox
from strata.tool_runner.sandbox.on_demand import SandboxOnDemand
from strata.tool_runner.servicers.sandbox import SandboxServicer
from strata.tool_runner.settings import ToolRunnerSettings

NAME = "tool_runner"
_SERVICE = sandbox_pb.DESCRIPTOR.services_by_name["SandboxService"].full_name
_CHECK_S = 5.0
_log = get_logger(__name__)


async def build(settings: ToolRunnerSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the runner. It has no database and no secrets, and calls no other service.

    The sandbox starts with the first call, since most agents never run code.

    Args:
        settings: Settings of the runner.
        wiring: Resources of the process that the runner runs in.
        stack: Closes what the runner opens.

    Raises:
        ValueError: The CA file of the settings does not exist.
    """
    return _service(_open_sandbox(settings, wiring.telemetry, stack))


async def build_started(
    settings: ToolRunnerSettings, wiring: Wiring, stack: AsyncExitStack
) -> Service:
    """Builds the runner as `build` does, and starts its sandbox.

    In a separate process the runner is ready only when it can run code.

    Raises:
        UnavailableError: The sandbox cannot be started.
    """
    sandbox = _open_sandbox(settings, wiring.telemetry, stack)
    await sandbox.start()
    return _service(sandbox)


def _open_sandbox(
    settings: ToolRunnerSettings, telemetry: Telemetry, stack: AsyncExitStack
) -> SandboxOnDemand:
    config = JailConfig(
        minimum=settings.minimum,
        parallel=settings.parallel_calls,
        environments=settings.packages_path,
        proxies=open_proxies(settings, stack),
        ca_file=ca_file(settings),
    )

    async def start() -> Sandbox:
        if settings.packages_path is not None and not settings.packages_path.is_dir():
            # Calls see the folder that exists when the sandbox starts.
            raise NotADirectoryError(f"packages_path: there is no folder {settings.packages_path}")
        sandbox = await JailSandbox.start(config)
        _log.info("sandbox started", isolation=sandbox.probe.description())
        telemetry.read_gauge(SANDBOX_RUNNING, lambda: sandbox.running_count)
        telemetry.read_gauge(SANDBOX_SPARES, lambda: sandbox.spare_count)
        return sandbox

    sandbox = SandboxOnDemand(start)
    stack.push_async_callback(sandbox.close)
    return sandbox


def _service(sandbox: SandboxOnDemand) -> Service:
    return Service(name=NAME, services=[GrpcService.of(SandboxServicer(sandbox))])


async def is_serving(address: str) -> bool:
    """Whether a runner serves at an address, for probes: a kubelet cannot use Unix sockets."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=_SERVICE)
        try:
            answer = await stub.Check(request, timeout=_CHECK_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def main() -> None:
    """Runs the runner; with the argument ``check``, exits with 0 if a runner serves."""
    settings = ToolRunnerSettings()
    if sys.argv[1:] == ["check"]:
        sys.exit(0 if asyncio.run(is_serving(settings.host)) else 1)
    # The service runs as another user of the same group and must open the socket.
    os.umask(0o007)
    run_service(NAME, build_started, settings)


if __name__ == "__main__":
    main()
