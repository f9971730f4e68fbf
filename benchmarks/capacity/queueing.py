"""A queueing model: the throughput and response time of turns that need several stations.

A *station* is what a turn can wait for: the event loop of a service, PostgreSQL's processors, those
of a machine. A *delay* is time in which a turn uses no station, such as the model's own time.

Sources: mean value analysis (Reiser and Lavenberg, 1980), with Seidmann's approximation for
stations of several servers; the M/M/c queue and Erlang's C formula for open arrivals; the
Wilson-Hilferty approximation for quantiles of the gamma distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_P95_NORMAL = 1.6448536


@dataclass(frozen=True, slots=True)
class Station:
    """A resource that turns share.

    Attributes:
        name: Its name.
        demand_ms: Time of one server that a turn needs, in milliseconds.
        servers: Number of servers that work side by side.
        visits: Number of visits that this time is spread over.
    """

    name: str
    demand_ms: float
    servers: int = 1
    visits: int = 1

    @property
    def capacity(self) -> float:
        """Turns per second at which all servers are always busy."""
        return self.servers * 1000 / self.demand_ms if self.demand_ms else math.inf

    def utilisation(self, rate: float) -> float:
        """Returns the share of the servers' time that turns need, above 1 if it is too little.

        Args:
            rate: Turns per second.
        """
        return rate / self.capacity


@dataclass(frozen=True, slots=True)
class Closed:
    """What a fixed number of clients get, each of which sends again when it has its reply.

    Attributes:
        throughput: Turns per second of all clients.
        response_ms: Mean time of a turn, with its delay.
    """

    throughput: float
    response_ms: float


def closed(stations: Sequence[Station], delay_ms: float, clients: int) -> Closed:
    """Solves the closed network.

    Args:
        stations: What each turn needs.
        delay_ms: Time of a turn that is not spent at a station.
        clients: Number of clients; at least 1.
    """
    single = [station.demand_ms / station.servers for station in stations]
    delay = delay_ms + sum(
        station.demand_ms * (station.servers - 1) / station.servers for station in stations
    )
    queues = [0.0] * len(single)
    result = Closed(0.0, delay)
    for count in range(1, clients + 1):
        times = [demand * (1 + queue) for demand, queue in zip(single, queues, strict=True)]
        response = sum(times) + delay
        rate_per_ms = count / response
        queues = [rate_per_ms * time for time in times]
        result = Closed(rate_per_ms * 1000, response)
    return result


@dataclass(frozen=True, slots=True)
class Response:
    """The time of a turn, in milliseconds; infinite if a station cannot keep up.

    Attributes:
        mean_ms: The mean.
        p95_ms: The 95th percentile.
    """

    mean_ms: float
    p95_ms: float


def response_at(stations: Sequence[Station], delay_ms: float, rate: float) -> Response:
    """Returns the time of turns that arrive independently of each other.

    Args:
        stations: What each turn needs.
        delay_ms: Time of a turn that is not spent at a station.
        rate: Turns per second that arrive.
    """
    mean, variance = 0.0, 0.0
    for station in stations:
        if not station.demand_ms:
            continue
        if station.utilisation(rate) >= 1:
            return Response(math.inf, math.inf)
        service = station.demand_ms / station.visits
        # Milliseconds are the unit of time, visits the unit of work.
        arrivals = rate * station.visits / 1000
        spare = station.servers / service - arrivals
        waits = _erlang_c(station.servers, arrivals * service)
        mean += station.visits * (service + waits / spare)
        variance += station.visits * (service**2 + waits * (2 - waits) / spare**2)
    return Response(delay_ms + mean, delay_ms + _gamma_p95(mean, variance))


def servers_for(demands_ms: Mapping[str, float], rate: float, utilisation: float) -> dict[str, int]:
    """Returns the number of servers that each station needs.

    Args:
        demands_ms: Time that a turn needs, by station.
        rate: Turns per second.
        utilisation: Largest share of the servers' time that may be used.
    """
    return {
        name: max(1, math.ceil(rate * demand / 1000 / utilisation))
        for name, demand in demands_ms.items()
    }


def _erlang_c(servers: int, load: float) -> float:
    """Returns the probability that an arrival waits in an M/M/c queue.

    Args:
        servers: Number of servers.
        load: Mean number of busy servers; less than `servers`.
    """
    # Erlang's B formula by its recursion, which does not overflow.
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    share = load / servers
    return blocked / (1 - share * (1 - blocked))


def _gamma_p95(mean: float, variance: float) -> float:
    if not mean or not variance:
        return mean
    shape = mean**2 / variance
    cube = 1 - 1 / (9 * shape) + _P95_NORMAL / (3 * math.sqrt(shape))
    return mean * max(cube, 0.0) ** 3
