"""Calls between services inside one process, without sockets.

Services use the same stubs, interceptors, metadata, deadlines, cancellation, limits and errors as
over a network, and messages are passed as bytes. Only retries, load balancing and reconnection
are missing, because there is no network.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from strata.protocol.connections import MAX_METADATA_BYTES
from strata.protocol.errors import Reason
from strata.protocol.shapes import ClientMethod, UniformChannel
from strata.shared.auth import TokenVerifier
from strata.shared.clock import Clock, SystemClock
from strata.shared.inprocess_call import call_class
from strata.shared.inprocess_rpc import RawMetadata, Rpc, RpcOutcome, unavailable
from strata.shared.interceptors.auth import TokenAuthenticator
from strata.shared.interceptors.client import CallPolicy, ClientChannel
from strata.shared.interceptors.pipeline import MethodTable
from strata.shared.interceptors.standard import method_table
from strata.shared.service import Service
from strata.shared.settings import ServerLimits, ServiceSettings
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry


@dataclass(slots=True)
class _Details:
    method: str
    invocation_metadata: RawMetadata


class InProcessServer:
    """Serves a table of methods to channels of the same process.

    Args:
        name: Part of the peer name that servicers see.
        table: The methods.
        max_metadata_bytes: Calls with larger metadata are refused.
    """

    def __init__(self, name: str, table: MethodTable, *, max_metadata_bytes: int) -> None:
        self._peer = f"inprocess:{name}"
        self._table = table
        self._max_metadata_bytes = max_metadata_bytes
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    def call(self, path: str, metadata: RawMetadata, timeout: float | None) -> Rpc:
        """Starts a call; a refused call is returned as ended."""
        loop = asyncio.get_running_loop()
        rpc = Rpc(loop, self._peer, metadata, timeout)
        if self._closed:
            rpc.finish(unavailable("The service is shutting down.", Reason.SHUTTING_DOWN))
        elif _size(metadata) > self._max_metadata_bytes:
            rpc.finish(
                RpcOutcome(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "received metadata size exceeds hard limit"
                )
            )
        elif timeout is not None and timeout <= 0:
            rpc.finish(
                RpcOutcome(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", local=True)
            )
        else:
            task = rpc.start(self._table.wrapped_method(_Details(path, metadata)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return rpc

    async def close(self, grace: float | None = None) -> None:
        """Refuses new calls, gives running ones `grace` seconds, then cancels them."""
        self._closed = True
        if self._running and grace:
            await asyncio.wait(tuple(self._running), timeout=grace)
        running = tuple(self._running)
        ending = self._table.stop()
        for task in running:
            if task not in ending:
                task.cancel()
        if running:
            await asyncio.wait(running)


class InProcessNetwork:
    """The services of this process and the channels between them; implements `Wiring`.

    A channel can be requested before its service is registered; calls made before then fail
    with UNAVAILABLE.

    Args:
        verifier: Verifies internal tokens, for all services.
        clock: The clock of the process.
        policy: Caps on the calls between services.
        telemetry: Where the metrics of all services go.
    """

    def __init__(
        self,
        verifier: TokenVerifier,
        *,
        clock: Clock | None = None,
        policy: CallPolicy | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.verifier = verifier
        self.clock: Clock = clock or SystemClock()
        self.telemetry = telemetry or Telemetry()
        self.shared_resources = SharedResources()
        self._policy = policy or CallPolicy()
        self._servers: dict[str, InProcessServer] = {}
        self._changed = asyncio.Event()

    def register(self, service: Service, settings: ServiceSettings | None = None) -> None:
        """Makes a service available to the others.

        Args:
            service: The built service.
            settings: Limits and logging of the service; None for the defaults.

        Raises:
            ValueError: A service of this name is registered.
        """
        if service.name in self._servers:
            raise ValueError(f"the service {service.name!r} is registered already")
        limits = settings.limits if settings is not None else ServerLimits()
        table = method_table(
            limits,
            service.authenticator or TokenAuthenticator(self.verifier),
            self.telemetry,
            service=service.name,
            access_log=settings is not None and settings.access_log,
            from_clients=service.from_clients,
        )
        for grpc_service in service.services:
            grpc_service.add(grpc_service.servicer, table)
        self._servers[service.name] = InProcessServer(
            service.name, table, max_metadata_bytes=MAX_METADATA_BYTES
        )
        self.notify()

    def channel(self, service: str) -> ClientChannel:
        """Returns a channel to a service, with the standard client interceptors."""
        return ClientChannel(self.raw_channel(service), self._policy)

    def raw_channel(self, service: str) -> InProcessChannel:
        """Returns a bare channel to a service: adds no metadata, raises `AioRpcError`."""
        return InProcessChannel(self, service)

    def notify(self) -> None:
        """Wakes the tasks that wait in `changed`."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Waits until a service is registered or a channel closed."""
        await self._changed.wait()

    def server(self, service: str) -> InProcessServer | None:
        """Returns the server of a service, None while it is not registered."""
        return self._servers.get(service)

    async def close(self, grace: float | None = None) -> None:
        """Closes all services at once: no new calls, `grace` seconds for running ones."""
        await asyncio.gather(*(server.close(grace) for server in self._servers.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class InProcessChannel(UniformChannel):
    """A `grpc.aio.Channel` to a service of this process."""

    def __init__(self, network: InProcessNetwork, service: str) -> None:
        self._network = network
        self._service = service
        self._closed = False

    def start(self, path: str, metadata: Any, timeout: float | None) -> Rpc:
        """Starts a call; for the callables of this channel.

        Raises:
            grpc.aio.UsageError: The channel is closed.
        """
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        raw: RawMetadata = tuple(metadata or ())
        server = self._network.server(self._service)
        if server is not None:
            return server.call(path, raw, timeout)
        rpc = Rpc(asyncio.get_running_loop(), f"inprocess:{self._service}", raw, timeout)
        text = f"The service {self._service!r} is not up."
        rpc.finish(unavailable(text, Reason.DEPENDENCY_UNAVAILABLE))
        return rpc

    def open_method(self, method: ClientMethod) -> Any:
        """Returns the callable of a method."""
        return _Callable(self, method)

    async def close(self, grace: float | None = None) -> None:
        """Refuses new calls; running calls continue."""
        self._closed = True
        self._network.notify()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns SHUTDOWN after `close`, READY or IDLE as the service is registered or not."""
        if self._closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self._network.server(self._service) is None:
            return grpc.ChannelConnectivity.IDLE
        return grpc.ChannelConnectivity.READY

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the state differs."""
        while self.get_state() is last_observed_state:
            await self._network.changed()

    async def channel_ready(self) -> None:
        """Waits until the service is registered.

        Raises:
            grpc.aio.UsageError: The channel is closed.
        """
        while (state := self.get_state()) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.SHUTDOWN:
                raise grpc.aio.UsageError("Channel is closed.")
            await self.wait_for_state_change(state)


class ServerChannel(UniformChannel):
    """A `grpc.aio.Channel` to one server of this process; adds no metadata.

    Args:
        server: The server.
    """

    def __init__(self, server: InProcessServer) -> None:
        self._server = server

    def start(self, path: str, metadata: Any, timeout: float | None) -> Rpc:
        """Starts a call; for the callables of this channel."""
        return self._server.call(path, tuple(metadata or ()), timeout)

    def open_method(self, method: ClientMethod) -> Any:
        """Returns the callable of a method."""
        return _Callable(self, method)

    async def close(self, grace: float | None = None) -> None:
        """Does nothing: the server ends the calls when it is closed."""

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns READY."""
        return grpc.ChannelConnectivity.READY

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Returns at once if the state is another one than READY, else never."""
        if last_observed_state is grpc.ChannelConnectivity.READY:
            await asyncio.Event().wait()

    async def channel_ready(self) -> None:
        """Returns at once."""


class _Callable:
    """Starts calls of one method; has no use for the options of a network."""

    def __init__(self, channel: InProcessChannel | ServerChannel, method: ClientMethod) -> None:
        self._channel = channel
        self._path = method.path
        self._request_streaming = method.shape.request_streaming
        self._serializer = method.request_serializer
        self._deserializer = method.response_deserializer
        self._call_class = call_class(method.shape)

    def __call__(
        self, request: Any = None, timeout: float | None = None, metadata: Any = None, **_: Any
    ) -> Any:
        if self._request_streaming:
            rpc = self._channel.start(self._path, metadata, timeout)
            call = self._call_class(rpc, self._serializer, self._deserializer)
            call.consume(request)
            return call
        raw = request if self._serializer is None else self._serializer(request)
        rpc = self._channel.start(self._path, metadata, timeout)
        rpc.requests.put_nowait(raw)
        rpc.requests.close()
        return self._call_class(rpc, self._serializer, self._deserializer)


def _size(metadata: RawMetadata) -> int:
    # RFC 9113 §10.5.1: 32 octets of overhead for each field.
    return sum([len(key) + len(value) + 32 for key, value in metadata])
