"""Channels to rooms over the network."""

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

from strata.shared.interceptors.client import CallPolicy, ClientChannel
from strata.shared.settings import KIB, MIB

_REPEATABLE = (MethodOptions.NO_SIDE_EFFECTS, MethodOptions.IDEMPOTENT)


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How connections are kept; times in seconds, sizes in bytes.

    Attributes:
        max_message_bytes: Largest request and response.
        max_metadata_bytes: Largest metadata taken from a peer.
        keepalive_s: Pause between pings; a dead peer is noticed after one more timeout.
        keepalive_timeout_s: How long a ping may stay unanswered.
        dns_refresh_s: Least time between two resolutions. The default of gRPC, 30 s,
            keeps new replicas without work for that long after a connection ages out.
        max_attempts: Requests in all for a method that may be repeated.
        local_subchannels: Own connections instead of those shared by equal channels.
    """

    max_message_bytes: int = 16 * MIB
    max_metadata_bytes: int = 16 * KIB
    keepalive_s: float = 30.0
    keepalive_timeout_s: float = 10.0
    dns_refresh_s: float = 2.0
    max_attempts: int = 4
    local_subchannels: bool = False


def services_of(room: str) -> list[ServiceDescriptor]:
    """Returns the services declared in ``strata.api.<room>.v1``.

    Raises:
        ModuleNotFoundError: There is no such package.
    """
    package = importlib.import_module(f"strata.api.{room}.v1")
    names = [
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if module.name.endswith("_pb2")
    ]
    found: list[ServiceDescriptor] = []
    for name in sorted(names):
        file = importlib.import_module(f"{package.__name__}.{name}").DESCRIPTOR
        found.extend(file.services_by_name.values())
    return found


def service_config(services: Iterable[ServiceDescriptor], *, max_attempts: int) -> str:
    """Returns the gRPC service config for a channel, as JSON.

    Replicas take turns. A unary method is repeated, on UNAVAILABLE only, if the
    contract declares it free of side effects or idempotent (``idempotency_level``).
    """
    names = [
        {"service": service.full_name, "method": method.name}
        for service in services
        for method in service.methods
        if _repeatable(method)
    ]
    config: dict[str, object] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if names and max_attempts > 1:
        config["methodConfig"] = [
            {
                "name": names,
                "retryPolicy": {
                    "maxAttempts": max_attempts,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    return json.dumps(config)


def _repeatable(method: MethodDescriptor) -> bool:
    if method.client_streaming or method.server_streaming:
        return False
    return method.GetOptions().idempotency_level in _REPEATABLE


class ChannelFactory:
    """Makes channels and closes them.

    Args:
        options: How connections are kept.
        policy: Caps on the calls.
    """

    def __init__(
        self, options: ChannelOptions | None = None, policy: CallPolicy | None = None
    ) -> None:
        self._options = options or ChannelOptions()
        self._policy = policy or CallPolicy()
        self._channels = AsyncExitStack()

    def channel(
        self, target: str, services: Iterable[ServiceDescriptor] = (), *, token: str = ""
    ) -> ClientChannel:
        """Returns a new channel; it connects at the first call.

        Args:
            target: ``dns:///recall:7103`` (all addresses of a headless service take
                turns), ``127.0.0.1:7103`` or ``unix:/run/strata/recall.sock``.
            services: What is called through it, for the retry policy.
            token: Sent with each call in place of that of the context's caller.
        """
        inner = grpc.aio.insecure_channel(target, options=self._arguments(services))
        channel = ClientChannel(inner, self._policy, token=token)
        self._channels.push_async_callback(channel.close)
        return channel

    async def close(self) -> None:
        """Closes every channel that was made."""
        await self._channels.aclose()

    def _arguments(self, services: Iterable[ServiceDescriptor]) -> list[tuple[str, str | int]]:
        options = self._options
        config = service_config(services, max_attempts=options.max_attempts)
        return [
            ("grpc.service_config", config),
            # Resolvers must not replace our policy by one from a DNS TXT record.
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.max_send_message_length", options.max_message_bytes),
            ("grpc.max_receive_message_length", options.max_message_bytes),
            ("grpc.max_metadata_size", options.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", 2 * options.max_metadata_bytes),
            ("grpc.keepalive_time_ms", _ms(options.keepalive_s)),
            ("grpc.keepalive_timeout_ms", _ms(options.keepalive_timeout_s)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.dns_min_time_between_resolutions_ms", _ms(options.dns_refresh_s)),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 5000),
            ("grpc.use_local_subchannel_pool", int(options.local_subchannels)),
        ]


class RoomChannels:
    """One channel per room, made when it is first asked for.

    Args:
        targets: Room name to gRPC target.
        factory: Makes the channels and closes them.
    """

    def __init__(self, targets: Mapping[str, str], factory: ChannelFactory) -> None:
        self._targets = dict(targets)
        self._factory = factory
        self._channels: dict[str, ClientChannel] = {}

    def channel(self, room: str) -> ClientChannel:
        """Returns the channel to a room.

        Raises:
            ValueError: No target is configured for the room.
        """
        channel = self._channels.get(room)
        if channel is None:
            target = self._targets.get(room)
            if not target:
                known = ", ".join(sorted(self._targets)) or "none"
                raise ValueError(f"no target is configured for the room {room!r} (known: {known})")
            channel = self._channels[room] = self._factory.channel(target, services_of(room))
        return channel


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
