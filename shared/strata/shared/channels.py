"""Channels to services over the network."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from strata.api.common.v1 import call_options_pb2
from strata.protocol.backoff import FIRST_PAUSE_S
from strata.shared.clock_skew import SkewMeter
from strata.shared.interceptors.attempts import RepeatPolicy
from strata.shared.interceptors.client import CallPolicy, ClientChannel
from strata.shared.renewing_channel import RenewingChannel, names_a_host
from strata.shared.settings import KIB, MIB
from strata.shared.tls import ClientTls

Arguments = list[tuple[str, str | int]]
"""Channel arguments of gRPC."""

_REPEATABLE = (MethodOptions.NO_SIDE_EFFECTS, MethodOptions.IDEMPOTENT)


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How connections are kept; times in seconds, sizes in bytes.

    Attributes:
        max_message_bytes: Largest request and response.
        max_metadata_bytes: Largest metadata taken from a peer.
        keepalive_s: Silence after which a peer with calls under way is pinged; one that hangs
            or is gone is noticed after one more timeout, and its calls end UNAVAILABLE.
        keepalive_timeout_s: How long a ping may stay unanswered.
        connect_s: Time that a connection may take to be made: TCP, TLS and the first frame of
            HTTP/2.
        attempt_s: Time in which a peer has to answer a call that may be repeated, before it is
            left for another one; where the method declares no ``attempt_seconds`` of its own.
        away_s: How long a stream, or a call without a deadline, waits for a peer that is away;
            other calls wait until their deadline.
        dns_refresh_s: Least time between two look-ups that a channel makes when connections
            break; the default of gRPC is 30 s.
        renew_s: Mean time between two replacements of the channel to a peer with a host name,
            each of which looks the name up: how soon a new replica gets calls.
        max_attempts: Attempts in all at a call that may be repeated.
        first_pause_s: Mean pause before the second attempt; later pauses double, up to 2 s.
        local_subchannels: Own connections instead of those shared by equal channels.
    """

    max_message_bytes: int = 16 * MIB
    max_metadata_bytes: int = 16 * KIB
    keepalive_s: float = 5.0
    keepalive_timeout_s: float = 5.0
    connect_s: float = 5.0
    attempt_s: float = 5.0
    away_s: float = 30.0
    dns_refresh_s: float = 2.0
    renew_s: float = 6.0
    max_attempts: int = 4
    first_pause_s: float = FIRST_PAUSE_S
    local_subchannels: bool = False


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


SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
"""The gRPC service config of all channels: replicas take turns.

It has no retry policy, for any method. From 1.72 on, the retry timer of gRPC has a race: if the
thread that starts it is preempted for as long as the pause, the call hangs until its deadline
(grpc/grpc#41036). `RepeatedCall`, `RepeatedStream` and the calls of `interceptors.replay` repeat
calls instead. The transparent retries of gRPC, which use no timer, stay on.
"""


def patience_of(services: Iterable[ServiceDescriptor], default_s: float) -> dict[str, float]:
    """Returns how long an attempt at each repeatable unary method may take, by path, seconds.

    The contract declares it (``attempt_seconds``) for methods that take longer than most.
    """
    patience: dict[str, float] = {}
    for service in services:
        for method in service.methods:
            if _repeatable(method):
                declared: float = method.GetOptions().Extensions[call_options_pb2.attempt_seconds]
                patience[f"/{service.full_name}/{method.name}"] = declared or default_s
    return patience


def _repeatable(method: MethodDescriptor) -> bool:
    if method.client_streaming or method.server_streaming:
        return False
    return method.GetOptions().idempotency_level in _REPEATABLE


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
        token: str = "",
        peer: str = "",
        tls: ClientTls | None = None,
    ) -> ClientChannel:
        """Returns a new channel; it connects at the first call.

        Args:
            target: ``dns:///recall:7103`` (all addresses of a headless service take
                turns), ``127.0.0.1:7103`` or ``unix:/run/strata/recall.sock``.
            services: What is called through it; their contracts declare which methods may be
                repeated.
            token: Sent with each call in place of that of the context's caller.
            peer: Name of the service behind it, where that is one of ours which we call
                with internal tokens.
            tls: How TLS is spoken; None connects without it.

        Raises:
            FailedPreconditionError: A file of the TLS settings cannot be used.
        """
        services = tuple(services)
        options = self._arguments()
        # Made once: connections are shared by channels that have the same ones.
        credentials = tls.credentials() if tls is not None else None

        def connect() -> grpc.aio.Channel:
            made: grpc.aio.Channel = (
                grpc.aio.insecure_channel(target, options=options)
                if credentials is None
                else grpc.aio.secure_channel(target, credentials, options=options)
            )
            return made

        renewing = peer and names_a_host(target) and not self._options.local_subchannels
        inner = RenewingChannel(connect, every_s=self._options.renew_s) if renewing else connect()
        channel = ClientChannel(
            inner,
            self._policy,
            token=token,
            peer=peer,
            skew=self._skew,
            repeat=self._repeat_policy(services, internal=bool(peer)),
        )
        self._channels.push_async_callback(channel.close)
        return channel

    async def close(self) -> None:
        """Closes every channel that was made."""
        await self._channels.aclose()

    def _repeat_policy(
        self, services: Iterable[ServiceDescriptor], *, internal: bool
    ) -> RepeatPolicy:
        options = self._options
        return RepeatPolicy(
            patience_of(services, options.attempt_s),
            options.away_s,
            options.max_attempts,
            options.first_pause_s,
            internal,
        )

    def _arguments(self) -> Arguments:
        options = self._options
        return [
            ("grpc.service_config", SERVICE_CONFIG),
            # Resolvers must not replace our policy by one from a DNS TXT record.
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.max_send_message_length", options.max_message_bytes),
            ("grpc.max_receive_message_length", options.max_message_bytes),
            ("grpc.max_metadata_size", options.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", 2 * options.max_metadata_bytes),
            ("grpc.keepalive_time_ms", _ms(options.keepalive_s)),
            ("grpc.keepalive_timeout_ms", _ms(options.keepalive_timeout_s)),
            # While a ping of gRPC's own (it measures the bandwidth with them) is under way, no
            # keepalive is sent, and such a ping may stay unanswered for a minute.
            ("grpc.http2.ping_timeout_ms", _ms(options.keepalive_timeout_s)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.dns_min_time_between_resolutions_ms", _ms(options.dns_refresh_s)),
            ("grpc.initial_reconnect_backoff_ms", 100),
            # By its name a pause; gRPC takes it for the time that a connection may take.
            ("grpc.min_reconnect_backoff_ms", _ms(options.connect_s)),
            # Short beside the time for which calls wait for a service that restarts.
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.use_local_subchannel_pool", int(options.local_subchannels)),
        ]


class ServiceChannels:
    """One channel per service, made when it is first asked for.

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
                known = ", ".join(sorted(self._targets)) or "none"
                raise ValueError(
                    f"no target is configured for the service {service!r} (known: {known})"
                )
            channel = self._channels[service] = self._factory.channel(
                target, services_of(service), peer=service
            )
        return channel


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
