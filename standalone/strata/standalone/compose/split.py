"""One process per service, each under a supervisor, real gRPC between them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from pydantic import BaseModel

import strata
from strata.protocol.errors import UnavailableError
from strata.shared import service_entry
from strata.standalone.compose.local import HOST, Local
from strata.standalone.compose.services import ALL_SERVICES, GATEWAY, INNER_SERVICES, ServiceSpec
from strata.standalone.ports import ReservedPort
from strata.standalone.settings import environment_of_service
from strata.standalone.supervisor import (
    Command,
    ProcessSupervisor,
    open_log,
    spawn,
    tail,
    until_ready,
)

_STOP_SECONDS = 20.0


class ServiceProcess:
    """A service in a separate process, restarted when it dies.

    Args:
        spec: The service.
        values: Its settings.
        folder: Where its log is kept.
        environment: Further environment variables.
    """

    def __init__(
        self,
        spec: ServiceSpec,
        values: dict[str, object],
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = spec.name
        self._module = spec.module
        roots = os.pathsep.join(str(Path(part).parent) for part in strata.__path__)
        self._environment = {
            "PYTHONPATH": roots,
            "PYTHONUNBUFFERED": "1",
            **environment_of(spec.name, values),
            **(environment or {}),
        }
        self._folder = folder
        self._log = folder / f"{spec.name}.log"
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.supervisor = ProcessSupervisor(
            spec.name,
            self._launch,
            stop_signal=signal.SIGTERM,
            stop_timeout=_STOP_SECONDS,
            log_path=self._log,
        )

    async def _launch(self) -> subprocess.Popen[bytes]:
        with open_log(self._log) as log:
            self._log_start = log.tell()
        process = spawn(
            Command(
                program=[sys.executable, "-m", service_entry.__name__, self._module],
                folder=self._folder,
                log_path=self._log,
                environment={**environment_of_service(self.name), **self._environment},
                # A service that drains without its supervisor would overlap with the next start.
                death_signal=signal.SIGKILL,
            )
        )
        if await until_ready(process, self._ready, stop=signal.SIGTERM):
            self._process = process
            return process
        raise UnavailableError(f"the service {self.name} did not start: {tail(self._log)}")

    async def stop(self, stop_now: asyncio.Event) -> None:
        """Ends the service in order, or by force as soon as `stop_now` is set."""
        stopping = asyncio.ensure_future(self.supervisor.stop())
        stop_requested = asyncio.ensure_future(stop_now.wait())
        try:
            await asyncio.wait({stopping, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done() and self._process is not None:
                self._process.kill()
            await stopping
        finally:
            stop_requested.cancel()

    def _ready(self) -> bool:
        # The service logs READY itself; a listener on its port could be another process.
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return f"READY {self.name} ".encode() in log.read()


async def start_services(
    local: Local, stack: AsyncExitStack, stop_now: asyncio.Event
) -> dict[str, ServiceProcess]:
    """Starts every service, the gateway last.

    Args:
        local: The parts below the services.
        stack: Stops the services, the gateway first.
        stop_now: Once it is set, services that are being stopped get no more time.
    """
    ports = {
        spec.name: stack.enter_context(ReservedPort(excluding=local.ports.ports))
        for spec in INNER_SERVICES
    }
    targets = {name: f"{HOST}:{port.number}" for name, port in ports.items()}
    targets[GATEWAY.name] = local.address
    metrics_ports = _metrics_ports(local)
    folder = local.folder.path / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    services = {
        spec.name: ServiceProcess(
            spec,
            {
                **_values(local, spec),
                "targets": targets,
                "metrics_host": local.metrics_host,
                "metrics_port": metrics_ports[spec.name],
                **_address(local, ports.get(spec.name)),
            },
            folder,
        )
        for spec in ALL_SERVICES
    }
    async with asyncio.TaskGroup() as group:
        for spec in INNER_SERVICES:
            group.create_task(_start(services[spec.name], stack, stop_now))
    await _start(services[GATEWAY.name], stack, stop_now)
    local.folder.announce_metrics(local.metrics_host, metrics_ports)
    return services


def _metrics_ports(local: Local) -> dict[str, int]:
    """Returns a metrics port for each service: the gateway's, and the free ones after it."""
    ports = {GATEWAY.name: local.metrics_port}
    last = local.metrics_port
    for spec in INNER_SERVICES:
        last = ports[spec.name] = local.ports.next_free(last + 1)
    return ports


async def _start(service: ServiceProcess, stack: AsyncExitStack, stop_now: asyncio.Event) -> None:
    await service.supervisor.start()
    stack.push_async_callback(service.stop, stop_now)


def _values(local: Local, spec: ServiceSpec) -> dict[str, object]:
    values = local.service_values(spec.name)
    if spec is GATEWAY:
        values["host"] = local.gateway.host
        values["http_port"] = local.gateway.http_port
        values["internal_listen"] = local.gateway.internal_listen
        values["only_replica"] = local.gateway.only_replica
    return values


def _address(local: Local, reserved: ReservedPort | None) -> dict[str, object]:
    if reserved is None:
        return {"port": local.gateway.port}
    return {"port": reserved.number, "reuse_port": True}


def environment_of(service: str, values: dict[str, object]) -> dict[str, str]:
    """Returns settings of a service as environment variables, with structures as JSON."""
    return {
        f"STRATA_{service.upper()}_{name.upper()}": _text(value) for name, value in values.items()
    }


def _text(value: object) -> str:
    if isinstance(value, str | Path):
        return str(value)
    return json.dumps(value, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not a setting")
