"""The interface between a service and the process that serves it.

Each service's ``main`` has ``async def build(settings, wiring, stack) -> Service``. It opens stores
and clients, registers their closing on the stack, and returns the service. It does not depend on
whether the other services run in the same process.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import grpc

from strata.shared.auth import TokenVerifier
from strata.shared.clock import Clock
from strata.shared.interceptors.auth import Authenticator
from strata.shared.logs import get_logger
from strata.shared.settings import ServiceSettings
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_HEALTHY_AFTER_S = 60.0

_log = get_logger(__name__)

BackgroundTask = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class GrpcService:
    """One gRPC service of a Strata service.

    Attributes:
        full_name: ``strata.api.recall.v1.MessageService``; take it from the descriptor.
        add: The generated ``add_<Name>Servicer_to_server``.
        servicer: The implementation.
        listed: Whether reflection lists it; False for an internal service on a public port.
    """

    full_name: str
    add: Callable[[Any, Any], None]
    servicer: object
    listed: bool = True

    @classmethod
    def of(cls, servicer: object, *, listed: bool = True) -> Self:
        """Returns the service that a servicer implements, by its generated base class.

        Raises:
            TypeError: The servicer has no generated base class.
        """
        for base in type(servicer).__mro__:
            if base.__module__.endswith("_pb2_grpc"):
                messages = import_module(base.__module__.removesuffix("_grpc"))
                name = base.__name__.removesuffix("Servicer")
                descriptor = messages.DESCRIPTOR.services_by_name[name]
                add = getattr(sys.modules[base.__module__], f"add_{base.__name__}_to_server")
                return cls(descriptor.full_name, add, servicer, listed)
        raise TypeError(f"{type(servicer).__name__} implements no generated servicer")


class ListenError(OSError):
    """An address cannot be listened on: it is in use, or not one of this machine."""


class Listener(Protocol):
    """A server of another protocol, such as HTTP, in front of a gRPC service."""

    async def start(self, channel: grpc.aio.Channel) -> None:
        """Listens.

        Args:
            channel: Calls the service in this process, with the interceptors of its server. It
                adds no metadata and raises `grpc.aio.AioRpcError`.

        Raises:
            ListenError: The address cannot be bound.
        """
        ...

    async def stop(self) -> None:
        """Refuses new connections and returns when the open requests have ended."""
        ...

    def abort(self) -> None:
        """Ends the open requests, so that `stop` returns."""
        ...


@dataclass(frozen=True, slots=True)
class Service:
    """A built service.

    Attributes:
        name: The folder name, ``core_memory``.
        services: Its gRPC services.
        background: Functions that start endless tasks; a task that fails is restarted.
        authenticator: How callers are identified; None verifies the internal token.
        listeners: Servers of other protocols in front of it.
        from_clients: Whether clients call it, and not only other services.
    """

    name: str
    services: Sequence[GrpcService]
    background: Sequence[BackgroundTask] = ()
    authenticator: Authenticator | None = None
    listeners: Sequence[Listener] = ()
    from_clients: bool = False


class Wiring(Protocol):
    """The facilities that a service gets from its process."""

    @property
    def verifier(self) -> TokenVerifier:
        """Verifies internal tokens."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of the process."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """The metrics of the process."""
        ...

    @property
    def shared_resources(self) -> SharedResources:
        """The resources that the services of the process share."""
        ...

    def channel(self, service: str) -> grpc.aio.Channel:
        """Returns the channel to another service, which need not have started yet."""
        ...


SettingsT_contra = TypeVar("SettingsT_contra", bound=ServiceSettings, contravariant=True)


class Build(Protocol[SettingsT_contra]):
    """The ``build`` of a service."""

    def __call__(
        self, settings: SettingsT_contra, wiring: Wiring, stack: AsyncExitStack, /
    ) -> Awaitable[Service]:
        """Builds the service; the stack closes the resources that it opens."""
        ...


class BackgroundTasks:
    """Runs the background tasks of a service while the block lasts.

    A task that fails is logged and restarted after a growing pause (0.5 s to
    30 s): a reconciler that cannot reach its engine must not stop the service.
    A task that returns is not restarted.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for make in self._service.background:
            name = f"{self._service.name}.{getattr(make, '__name__', 'background')}"
            self._tasks.append(asyncio.create_task(self._supervise(make, name), name=name))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _supervise(self, make: BackgroundTask, name: str) -> None:
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE_S
        while True:
            started = loop.time()
            try:
                await make()
            except Exception:  # noqa: BLE001 - after any failure the task is restarted
                # A task group that fails while it is cancelled raises the failure instead.
                current_task = asyncio.current_task()
                if current_task is not None and current_task.cancelling():
                    _log.exception("background task failed at its end", task=name)
                    return
                if loop.time() - started > _HEALTHY_AFTER_S:
                    pause = _FIRST_PAUSE_S
                _log.exception("background task failed", task=name, restart_in_s=pause)
            else:
                return
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311
            pause = min(pause * 2, _LONGEST_PAUSE_S)
