"""A process that serves one service over gRPC."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from strata.protocol.connections import MAX_METADATA_BYTES
from strata.shared.auth import TokenVerifier
from strata.shared.channels import ChannelFactory, ChannelOptions, ServiceChannels
from strata.shared.clock import Clock, SystemClock
from strata.shared.clock_skew import SkewMeter
from strata.shared.event_loop import loop_factory
from strata.shared.gc_freeze import start_freezing
from strata.shared.heap_trim import start_trimming, use_one_arena
from strata.shared.inprocess import InProcessServer, ServerChannel
from strata.shared.interceptors.auth import Authenticator, TokenAuthenticator
from strata.shared.interceptors.client import CallPolicy, ClientChannel
from strata.shared.interceptors.standard import method_table
from strata.shared.logs import configure_logging, get_logger
from strata.shared.open_files import raise_open_file_limit
from strata.shared.reflection import add_reflection
from strata.shared.service import (
    BackgroundTasks,
    Build,
    Listener,
    ListenError,
    Service,
    SettingsT_contra,
)
from strata.shared.settings import MIB, ServiceSettings, warn_about_unknown_variables
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry
from strata.shared.tracing.opening import open_telemetry
from strata.shared.tracing.settings import TraceSettings

if TYPE_CHECKING:
    from strata.shared.http_listener import HttpListener

THREAD_TURN_S = 0.001
"""How long a thread runs Python code before it lets another one run, such as the event loop.

With the default of 0.005, each event waits that long while a thread splits a text for the index.
"""
_SERVING = health_pb2.HealthCheckResponse.SERVING
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

# Time that ended calls get to clean up and to send their status.
_ENDING_S = 5.0
_NEVER_S = 1e6
# Calls of a burst that wait until they are accepted or refused; gRPC cancels further ones. Each
# takes about 10 KiB of memory.
_MAX_PENDING_CALLS = 50_000
# Clients reconnect after this time, so that new replicas get their share of the calls.
_MAX_CONNECTION_AGE_S = 300.0
# Calls on an aged connection may last as long as the longest stream, and this much longer.
_AGED_CONNECTION_MARGIN_S = 60.0
# A client that pings a silent connection more often is disconnected. Services ping each other every
# 5 s during a call.
_MIN_PING_INTERVAL_S = 3.0

_log = get_logger(__name__)


class GrpcServer:
    """The gRPC server of one service.

    Args:
        service: The service.
        settings: Address, limits and connection ages.
        authenticator: Identifies the callers.
        telemetry: Registry of the metrics.
        clock: The clock of the process.
    """

    def __init__(
        self,
        service: Service,
        settings: ServiceSettings,
        authenticator: Authenticator,
        telemetry: Telemetry | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.telemetry = telemetry or Telemetry()
        self._service = service
        self._settings = settings
        self._health = health.aio.HealthServicer()
        self._table = method_table(
            settings.limits,
            authenticator,
            self.telemetry,
            service=service.name,
            access_log=settings.access_log,
            clock=clock or SystemClock(),
            # A service with its own authenticator is called from outside. Host names are
            # not shown there.
            host=socket.gethostname() if service.authenticator is None else "",
            from_clients=service.from_clients,
        )
        self._server = grpc.aio.server(options=_server_arguments(settings))
        self._server.add_generic_rpc_handlers((self._table,))
        self._port = 0
        self._stopping: asyncio.Task[None] | None = None
        self._draining = False
        self._metrics = self._metrics_listener()
        self._listeners: list[Listener] = []
        # The generated functions expect a server; the table has the methods that they call.
        table: Any = self._table
        for grpc_service in service.services:
            grpc_service.add(grpc_service.servicer, table)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, table)
        if settings.reflection:
            listed = (service.full_name for service in service.services if service.listed)
            add_reflection((*listed, _HEALTH), table)

    @property
    def port(self) -> int:
        """The bound port; 0 before `start` and on a unix socket."""
        return self._port

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics; None if there is none."""
        return None if self._metrics is None else self._metrics.port

    @property
    def address(self) -> str:
        """The address that clients connect to: ``127.0.0.1:7103`` or ``unix:/path``."""
        return _address(self._settings.host, self._port)

    async def start(self) -> int:
        """Listens and reports SERVING.

        Returns:
            The bound port.

        Raises:
            ListenError: The address cannot be bound.
            FailedPreconditionError: The files of the TLS settings cannot be used.
        """
        address = _address(self._settings.host, self._settings.port)
        tls = self._settings.tls
        port = self._listen(address, None if tls is None else tls.credentials())
        if self._settings.internal_address:
            self._listen(self._settings.internal_address)
        self._port = 0 if address.startswith("unix:") else port
        await self._server.start()
        try:
            await self._start_listeners()
        except BaseException:
            await self._server.stop(None)
            raise
        for service in self._service.services:
            await self._health.set(service.full_name, _SERVING)
        return self._port

    async def _start_listeners(self) -> None:
        # The calls of all listeners and those over gRPC share the limits of the method table.
        local = InProcessServer(
            self._service.name, self._table, max_metadata_bytes=MAX_METADATA_BYTES
        )
        metrics = () if self._metrics is None else (self._metrics,)
        for listener in (*self._service.listeners, *metrics):
            await listener.start(ServerChannel(local))
            self._listeners.append(listener)

    def _metrics_listener(self) -> HttpListener | None:
        if self._settings.metrics_port is None:
            return None
        # Loads uvicorn and the formats of Prometheus, which only this port needs.
        from strata.shared.metrics_endpoint import metrics_listener  # noqa: PLC0415

        return metrics_listener(self._settings, self.telemetry, lambda: not self._draining)

    async def _stop_all(self) -> None:
        # gRPC's own grace never ends: gRPC would end the calls as CANCELLED, and callers would not
        # repeat them.
        await asyncio.gather(
            self._server.stop(_NEVER_S), *(listener.stop() for listener in self._listeners)
        )

    def _listen(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            # The rest of gRPC's message is about its own log.
            problem = str(error).partition(";")[0]
            raise ListenError(f"cannot listen on {address}: {problem}") from error

    async def drain(self) -> None:
        """Reports NOT_SERVING from now on; calls are still accepted."""
        self._draining = True
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float | None) -> None:
        """Refuses new calls, and after `grace` seconds ends running ones with UNAVAILABLE.

        May be called again to shorten the grace period.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop_all())
        await asyncio.wait((self._stopping,), timeout=grace or 0)
        if not self._stopping.done():
            self._table.stop()
            await asyncio.wait((self._stopping,), timeout=_ENDING_S)
        if not self._stopping.done():
            for listener in self._listeners:
                listener.abort()
            await self._server.stop(None)
        await self._stopping


def _server_arguments(settings: ServiceSettings) -> list[tuple[str, str | int]]:
    limits = settings.limits
    # Our interceptors enforce the exact limit, with a readable reason. gRPC's own limit, which
    # gives none, only protects the memory.
    guard = 2 * limits.max_message_bytes
    return [
        ("grpc.so_reuseport", int(settings.reuse_port)),
        ("grpc.max_receive_message_length", guard),
        ("grpc.max_send_message_length", guard),
        # With the default, 3,000 (at random from 1,000 on), gRPC ends calls of a burst as CANCELLED
        # before the interceptors see them. The interceptors refuse them with a retry hint.
        ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_connection_age_ms", round(_MAX_CONNECTION_AGE_S * 1000)),
        (
            "grpc.max_connection_age_grace_ms",
            round((settings.stream_timeout_s + _AGED_CONNECTION_MARGIN_S) * 1000),
        ),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.ping_timeout_ms", 20_000),
        # The default, five minutes, would disconnect clients that ping while they wait for a model.
        (
            "grpc.http2.min_ping_interval_without_data_ms",
            round(_MIN_PING_INTERVAL_S * 1000),
        ),
    ]


def _address(host: str, port: int) -> str:
    if host.startswith("unix:"):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class NetworkWiring:
    """The wiring of a service that runs alone in its process."""

    def __init__(
        self,
        verifier: TokenVerifier,
        channels: ServiceChannels,
        clock: Clock,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.verifier = verifier
        self.clock = clock
        self.telemetry = telemetry or Telemetry()
        self.shared_resources = SharedResources()
        self._channels = channels

    def channel(self, service: str) -> ClientChannel:
        """Returns the channel to another service.

        Raises:
            ValueError: No target is configured for it.
        """
        return self._channels.channel(service)


@asynccontextmanager
async def serving(
    build: Build[SettingsT_contra],
    settings: SettingsT_contra,
    *,
    telemetry: Telemetry | None = None,
    stop_now: asyncio.Event | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[GrpcServer]:
    """Serves a service while the block lasts.

    Shutdown order: NOT_SERVING, the drain pause, refusal of new calls and grace for running
    ones, the background tasks, then the service's exit stack.

    Args:
        build: The service's `build`.
        settings: The service's settings.
        telemetry: Where the metrics go.
        stop_now: When set, drain and grace are cut short.
        clock: The clock of the process; by default the system clock.

    Raises:
        ValueError: No key to verify internal tokens with.
        ListenError: The address cannot be bound.
    """
    stop_now = stop_now or asyncio.Event()
    async with AsyncExitStack() as stack:
        clock = clock or SystemClock()
        telemetry = telemetry or Telemetry()
        verifier = TokenVerifier(settings.public_keys(), clock=clock)
        factory = ChannelFactory(
            # The limit of a server at the edge is lower than the messages between services.
            ChannelOptions(max_message_bytes=max(settings.limits.max_message_bytes, 16 * MIB)),
            CallPolicy(stream_timeout_s=settings.stream_timeout_s),
            SkewMeter(telemetry, clock),
        )
        stack.push_async_callback(factory.close)
        channels = ServiceChannels(settings.targets, factory)
        wiring = NetworkWiring(verifier, channels, clock, telemetry)
        service = await build(settings, wiring, stack)
        await stack.enter_async_context(BackgroundTasks(service))
        authenticator = service.authenticator or TokenAuthenticator(verifier)
        server = GrpcServer(service, settings, authenticator, telemetry, clock)
        await server.start()
        stack.push_async_callback(_shut_down, server, settings, stop_now)
        yield server


async def _shut_down(
    server: GrpcServer, settings: ServiceSettings, stop_now: asyncio.Event
) -> None:
    await server.drain()
    stop_requested = asyncio.create_task(stop_now.wait())
    try:
        await asyncio.wait((stop_requested,), timeout=settings.drain_s)
        stopping = asyncio.create_task(server.stop(settings.grace_s))
        await asyncio.wait((stop_requested, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await server.stop(None)
        await stopping
    finally:
        stop_requested.cancel()


class _Termination:
    """Handles SIGTERM and SIGINT: the first signal stops the service, the second skips the grace.

    A signal while the service is starting cancels the start.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.stop_now = asyncio.Event()
        self._starting = asyncio.current_task()

    def started(self) -> None:
        self._starting = None

    @property
    def during_start(self) -> bool:
        return self.requested.is_set() and self._starting is not None

    def _on_signal(self) -> None:
        if self.requested.is_set():
            self.stop_now.set()
            return
        self.requested.set()
        if self._starting is not None:
            self._starting.cancel()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


async def serve_service(
    name: str,
    build: Build[SettingsT_contra],
    settings: SettingsT_contra,
    *,
    ready: Callable[[GrpcServer], None] | None = None,
) -> None:
    """Serves a service until SIGTERM or SIGINT; a second signal skips drain and grace.

    Args:
        name: The service, for the log.
        build: The service's `build`.
        settings: The service's settings.
        ready: Called once calls are accepted.
    """
    warn_about_unknown_variables(TraceSettings)
    sys.setswitchinterval(THREAD_TURN_S)
    with _Termination() as termination:
        try:
            async with (
                open_telemetry(TraceSettings()) as telemetry,
                serving(
                    build, settings, telemetry=telemetry, stop_now=termination.stop_now
                ) as server,
                start_freezing(),
                start_trimming(),
            ):
                termination.started()
                _log.info(
                    "service ready",
                    service=name,
                    address=server.address,
                    metrics_port=server.metrics_port,
                )
                if ready is not None:
                    ready(server)
                await termination.requested.wait()
                _log.info("service draining", service=name, drain_s=settings.drain_s)
        except asyncio.CancelledError:
            if not termination.during_start:
                raise
    _log.info("service stopped", service=name)


def run_service(name: str, build: Build[SettingsT_contra], settings: SettingsT_contra) -> None:
    """Runs a process that serves one service until a signal stops it.

    Prints one line ``READY <service> <address>`` to standard output once calls are accepted,
    for supervisors. Logs go to standard error.

    Args:
        name: The service, ``core_memory``.
        build: The service's `build`.
        settings: The service's settings.
    """

    def announce(server: GrpcServer) -> None:
        print(f"READY {name} {server.address}", flush=True)  # noqa: T201

    use_one_arena()
    raise_open_file_limit()
    configure_logging(settings.log_level, settings.log_format, service=name)
    warn_about_unknown_variables(type(settings))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve_service(name, build, settings, ready=announce))
