"""Options of the connections of channels, and the repeatable methods of the contracts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

Arguments = list[tuple[str, str | int]]
"""Channel arguments of gRPC."""

SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
"""The gRPC service config of all channels: replicas take turns.

It has no retry policy, for any method. From 1.72 on, the retry timer of gRPC has a race: if the
thread that starts it is preempted for as long as the pause, the call hangs until its deadline
(grpc/grpc#41036). The calls of `strata.protocol.attempts` and those between services repeat
themselves instead. The transparent retries of gRPC, which use no timer, stay on.
"""

MAX_METADATA_BYTES = 16 << 10
"""Largest metadata of a call, on both sides: twice the default of gRPC, for tokens and statuses."""

_REPEATABLE = (MethodOptions.NO_SIDE_EFFECTS, MethodOptions.IDEMPOTENT)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How connections are kept; times in seconds, sizes in bytes.

    Attributes:
        max_message_bytes: Largest request and response.
        max_metadata_bytes: Largest metadata taken from a peer.
        keepalive_s: Silence after which a peer with calls under way is pinged; one that hangs
            or is gone is noticed after one more timeout, and its calls end UNAVAILABLE.
        keepalive_timeout_s: How long a ping may stay unanswered.
        connect_s: Time that a connection may take to be made: TCP, TLS and the first frame of
            HTTP/2.
        dns_refresh_s: Minimum time between two look-ups that a channel makes when connections
            break; the default of gRPC is 30 s.
        local_subchannels: Own connections instead of those shared by equal channels.
    """

    max_message_bytes: int = 16 << 20
    max_metadata_bytes: int = MAX_METADATA_BYTES
    keepalive_s: float = 5.0
    keepalive_timeout_s: float = 5.0
    connect_s: float = 5.0
    dns_refresh_s: float = 2.0
    local_subchannels: bool = False

    def arguments(self) -> Arguments:
        """Returns the channel arguments of gRPC."""
        return [
            ("grpc.service_config", SERVICE_CONFIG),
            # Resolvers must not replace our policy by one from a DNS TXT record.
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_metadata_size", self.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", 2 * self.max_metadata_bytes),
            ("grpc.keepalive_time_ms", _ms(self.keepalive_s)),
            ("grpc.keepalive_timeout_ms", _ms(self.keepalive_timeout_s)),
            # While a ping of gRPC's own (it measures the bandwidth with them) is under way, no
            # keepalive is sent, and such a ping may stay unanswered for a minute.
            ("grpc.http2.ping_timeout_ms", _ms(self.keepalive_timeout_s)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.dns_min_time_between_resolutions_ms", _ms(self.dns_refresh_s)),
            ("grpc.initial_reconnect_backoff_ms", 100),
            # Despite its name, gRPC uses this pause as the time that a connection may take.
            ("grpc.min_reconnect_backoff_ms", _ms(self.connect_s)),
            # Short compared to the time for which calls wait for a service that restarts.
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.use_local_subchannel_pool", int(self.local_subchannels)),
        ]


def repeatable_methods(
    services: Iterable[ServiceDescriptor],
) -> Iterator[tuple[str, MethodDescriptor]]:
    """Yields path and descriptor of each unary method without side effects, or idempotent."""
    for service in services:
        for method in service.methods:
            if _repeatable(method):
                yield f"/{service.full_name}/{method.name}", method


def _repeatable(method: MethodDescriptor) -> bool:
    if method.client_streaming or method.server_streaming:
        return False
    return method.GetOptions().idempotency_level in _REPEATABLE


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
