"""Measures how far the clocks of other services differ from the local clock.

Each server sends its time with every answer, as trailing metadata. The client compares it with
its own clock: if the clocks agree, the server's time lies between the sending of the request and
the arrival of the response.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from strata.shared.clock import Clock
from strata.shared.logs import get_logger
from strata.shared.metric_names import CLOCK_SKEW_SECONDS
from strata.shared.telemetry import Telemetry

SERVER_TIME_KEY: Final = "x-strata-time"
"""Trailing metadata: seconds since 1970 by the clock of the server, in decimal."""
SERVER_HOST_KEY: Final = "x-strata-host"
"""Trailing metadata between services: the host that answered; not sent to clients."""
NOTICEABLE_S: Final = 5.0
"""Smaller differences are not worth a warning; `strata.shared.auth` tolerates far more."""

_EVERY_S = 5.0
_SLOWEST_S = 2.0
_REMEMBERED_S = 60.0
_WARN_EVERY_S = 60.0

_log = get_logger(__name__)


def skew_between(server: float, sent: float, received: float) -> float:
    """Returns by how many seconds, at least, the server's clock is ahead (negative: behind).

    Args:
        server: Time of the server while it handled the call, seconds since 1970.
        sent: When the request was sent, by the local clock.
        received: When the response arrived, by the local clock.
    """
    if server > received:
        return server - received
    return min(server - sent, 0.0)


def server_time(trailing: Iterable[tuple[str, str | bytes]] | None) -> float | None:
    """Returns the time that a server sent with its answer; None if it sent none."""
    value = _value(trailing, SERVER_TIME_KEY)
    try:
        return float(value) if value else None
    except ValueError:
        return None


def _value(trailing: Iterable[tuple[str, str | bytes]] | None, name: str) -> str:
    for key, value in trailing or ():
        if key == name and isinstance(value, str):
            return value
    return ""


class SkewMeter:
    """Measures the clocks of the services that this process calls.

    The gauge ``strata_clock_skew_seconds{peer}`` has the largest difference to any host of
    a service within the last minute, positive where the other clock is ahead. Differences
    over `NOTICEABLE_S` are logged once per minute and service.

    Args:
        telemetry: Registry of the gauge.
        clock: The local clock.
    """

    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._next: dict[str, float] = {}
        self._warned: dict[str, float] = {}
        self._hosts: dict[str, dict[str, tuple[float, float]]] = {}

    def due(self, peer: str) -> bool:
        """Returns whether to measure: once every five seconds for each service."""
        return self._clock.monotonic() >= self._next.get(peer, 0.0)

    def note(
        self, peer: str, trailing: Iterable[tuple[str, str | bytes]] | None, elapsed_s: float
    ) -> None:
        """Records the time that came with an answer.

        Args:
            peer: The service.
            trailing: The trailing metadata of the answer.
            elapsed_s: Seconds since the request was sent; long calls are not measured.
        """
        server = server_time(trailing)
        if server is None or elapsed_s > _SLOWEST_S:
            return
        now, received = self._clock.monotonic(), self._clock.now().timestamp()
        self._next[peer] = now + _EVERY_S
        skew = skew_between(server, received - elapsed_s, received)
        host = _value(trailing, SERVER_HOST_KEY)
        hosts = self._hosts.setdefault(peer, {})
        hosts[host] = (skew, now)
        for other in [
            name for name, (_, last_seen) in hosts.items() if now - last_seen > _REMEMBERED_S
        ]:
            del hosts[other]
        largest = max((measured for measured, _ in hosts.values()), key=abs)
        self._telemetry.gauge(CLOCK_SKEW_SECONDS, peer=peer).set(largest)
        if abs(skew) > NOTICEABLE_S and now >= self._warned.get(peer, 0.0):
            self._warned[peer] = now + _WARN_EVERY_S
            _log.warning(
                "clocks differ; synchronise the hosts with NTP",
                peer=peer,
                host=host,
                skew_s=round(skew, 3),
            )
