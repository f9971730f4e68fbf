"""Channels to services over the network."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from strata.api.common.v1 import call_options_pb2
from strata.protocol.backoff import FIRST_PAUSE_S
from strata.protocol.connections import ConnectionOptions, repeatable_methods
from strata.protocol.request_ids import request_id_numbers
from strata.shared.clock_skew import SkewMeter
from strata.shared.interceptors.attempts import RepeatPolicy
from strata.shared.interceptors.client import CallPolicy, ClientChannel
from strata.shared.renewing_channel import RenewingChannel, names_a_host


@dataclass(frozen=True, slots=True)
class ChannelOptions(ConnectionOptions):
    """How connections are kept and calls repeated; times in seconds.

    Attributes:
        attempt_s: Time in which a peer has to answer a repeatable call before the next attempt;
          used where the method does not declare its own ``attempt_seconds``.
        away_s: How long a stream, or a call without a deadline, waits for a peer that cannot be
            reached; other calls wait until their deadline.
        renew_s: Mean time between two replacements of the channel to a peer with a host name,
            each of which resolves the name again: how soon a new replica gets calls.
        max_attempts: Attempts in all at a call that may be repeated.
        first_pause_s: Mean pause before the second attempt; later pauses double, up to 2 s.
    """

    attempt_s: float = 5.0
    away_s: float = 30.0
    renew_s: float = 6.0
    max_attempts: int = 4
    first_pause_s: float = FIRST_PAUSE_S


def services_of(service: str) -> list[ServiceDescriptor]:
    """Returns the services declared in ``strata.api.<service>.v1``.

    Raises:
        ModuleNotFoundError: There is no such package.
    """
    package = importlib.import_module(f"strata.api.{service}.v1")
    names = [
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if module.name.endswith("_pb2")
    ]
    descriptors: list[ServiceDescriptor] = []
    for name in sorted(names):
        file = importlib.import_module(f"{package.__name__}.{name}").DESCRIPTOR
        descriptors.extend(file.services_by_name.values())
    return descriptors


def patience_of(services: Iterable[ServiceDescriptor], default_s: float) -> dict[str, float]:
    """Returns how long an attempt at each repeatable unary method may take, by path, seconds.

    The contract declares it (``attempt_seconds``) for methods that take longer than most.
    """
    patience: dict[str, float] = {}
    for path, method in repeatable_methods(services):
        declared: float = method.GetOptions().Extensions[call_options_pb2.attempt_seconds]
        patience[path] = declared or default_s
    return patience


class ChannelFactory:
    """Makes channels and closes them.

    Args:
        options: How connections are kept.
        policy: Caps on the calls.
        skew: Measures the clocks of the peers.
    """

    def __init__(
        self,
        options: ChannelOptions | None = None,
        policy: CallPolicy | None = None,
        skew: SkewMeter | None = None,
    ) -> None:
        self._options = options or ChannelOptions()
        self._policy = policy or CallPolicy()
        self._skew = skew
        self._channels = AsyncExitStack()

    def channel(
        self,
        target: str,
        services: Iterable[ServiceDescriptor] = (),
        *,
        peer: str = "",
    ) -> ClientChannel:
        """Returns a new channel; it connects at the first call.

        Args:
            target: ``dns:///recall:7103`` (all addresses of a headless service take
                turns), ``127.0.0.1:7103`` or ``unix:/run/strata/recall.sock``.
            services: The services called through it; their contracts declare which methods may be
                repeated, if there is a `peer`.
            peer: Name of the service behind it, where that is one of ours which we call
                with internal tokens.
        """
        options = self._options.arguments()

        def connect() -> grpc.aio.Channel:
            grpc_channel: grpc.aio.Channel = grpc.aio.insecure_channel(target, options=options)
            return grpc_channel

        renewing = peer and names_a_host(target) and not self._options.local_subchannels
        inner = RenewingChannel(connect, every_s=self._options.renew_s) if renewing else connect()
        channel = ClientChannel(
            inner,
            self._policy,
            peer=peer,
            skew=self._skew,
            repeat=self._repeat_policy(services) if peer else None,
        )
        self._channels.push_async_callback(channel.close)
        return channel

    async def close(self) -> None:
        """Closes every channel that was made."""
        await self._channels.aclose()

    def _repeat_policy(self, services: Iterable[ServiceDescriptor]) -> RepeatPolicy:
        options, services = self._options, tuple(services)
        return RepeatPolicy(
            max_attempts=options.max_attempts,
            first_pause_s=options.first_pause_s,
            patience_s=patience_of(services, options.attempt_s),
            request_id_numbers=request_id_numbers(services),
            away_s=options.away_s,
        )


class ServiceChannels:
    """One channel per service, made at its first use.

    Args:
        targets: Service name to gRPC target.
        factory: Makes the channels and closes them.
    """

    def __init__(self, targets: Mapping[str, str], factory: ChannelFactory) -> None:
        self._targets = dict(targets)
        self._factory = factory
        self._channels: dict[str, ClientChannel] = {}

    def channel(self, service: str) -> ClientChannel:
        """Returns the channel to a service.

        Raises:
            ValueError: No target is configured for the service.
        """
        channel = self._channels.get(service)
        if channel is None:
            target = self._targets.get(service)
            if not target:
                names = ", ".join(sorted(self._targets)) or "none"
                raise ValueError(
                    f"no target is configured for the service {service!r} (known: {names})"
                )
            channel = self._channels[service] = self._factory.channel(
                target, services_of(service), peer=service
            )
        return channel
