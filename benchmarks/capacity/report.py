"""The report of the capacity benchmark: a document, and all figures as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.capacity.measuring import Demand, Load, Rpc
from benchmarks.capacity.queueing import Station, closed, response_at, servers_for
from benchmarks.report import describe_machine

NAME = "capacity"
POSTGRES = "postgres"
_REPLICAS = (1, 2, 4, 16)
_RATES = (100, 1_000, 10_000)
# Processors of the database server in predictions for a number of replicas.
_DATABASE_PROCESSORS = 16
# The share of a station that is used in a plan; above it, waiting times grow quickly.
_UTILISATION = 0.7
# Statements of a plain turn (docs/decisions/0148-statements-without-begin.md).
_STATEMENTS = 9


@dataclass
class CapacityReport:
    """The results of one run.

    Attributes:
        demand: What a turn needs.
        rpcs: The RPCs of a turn.
        loads: Measured loads.
        cpu_of_others: Share of the processors that other processes used, from 0 to 1.
    """

    demand: Demand
    rpcs: Sequence[Rpc]
    loads: Sequence[Load]
    cpu_of_others: float
    machine: dict[str, str | float | int] = field(default_factory=describe_machine)

    def save(self, path: Path) -> None:
        """Writes all figures as one JSON document."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def document(self) -> str:
        """Returns the document, in Markdown."""
        return "\n".join(_document(self))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the model predicts for a cluster.

    Attributes:
        replicas: Replicas of each service.
        bottleneck: The station that is saturated first.
        capacity: Turns per second at which it is.
        response_ms: Mean time of a turn at the planned utilisation, without the model's own time.
        p95_ms: Its 95th percentile.
    """

    replicas: int
    bottleneck: str
    capacity: float
    response_ms: float
    p95_ms: float


def predicted_on(demand: Demand, load: Load, processors: int) -> float:
    """Returns the turns per second that the model predicts for a load on this machine.

    All processes share its processors, those of the client and of the model double included. Work
    in the background gives way to turns, so the prediction does not include it.
    """
    machine = Station("processors", sum(demand.turn_ms.values()), processors)
    return closed([machine], demand.delay_ms, load.clients).throughput


def forecast(demand: Demand, rpcs: Sequence[Rpc], replicas: int) -> Forecast:
    """Predicts a cluster in which each replica has a processor and PostgreSQL has 16."""
    calls = Counter[str]()
    for rpc in rpcs:
        calls[rpc.service] += round(rpc.calls)
    calls[POSTGRES] = _STATEMENTS
    stations = [
        Station(
            name,
            cpu_ms,
            _DATABASE_PROCESSORS if name == POSTGRES else replicas,
            max(calls[name], 1),
        )
        for name, cpu_ms in demand.whole_ms.items()
    ]
    first = min(stations, key=lambda station: station.capacity)
    response = response_at(stations, demand.delay_ms, first.capacity * _UTILISATION)
    return Forecast(replicas, first.name, first.capacity, response.mean_ms, response.p95_ms)


def _document(report: CapacityReport) -> Iterator[str]:
    demand, machine = report.demand, report.machine
    processors = int(machine["cores"])
    yield f"""\
# Capacity of a cluster

Written by `python -m benchmarks.capacity --out docs/benchmarks` on {datetime.now(UTC):%Y-%m-%d},
on {processors} processors, {machine["memory_gb"]} GB, {machine["system"]}, Python
{machine["python"]}; others used {report.cpu_of_others:.0%} of the processors. The services ran as
in the Kubernetes manifests, each replica in a process of its own, with embedded PostgreSQL, the
embedded vector engine and the model double of the [benchmarks](README.md). A turn is a message
and a reply in text.

## What a turn needs

Processor time of a plain turn, measured with eight clients at once, and of the work that followed
in the background: the indexing of the messages. A replica of a service works on one processor,
except for embedding.
""".rstrip()
    yield ""
    yield from _table(
        ("service or engine", "of a turn", "in the background", "turns a second of one processor"),
        (
            (
                name, f"{demand.turn_ms[name]:.1f} ms",
                f"{demand.background_ms.get(name, 0.0):.1f} ms", f"{1000 / cpu_ms:.0f}",
            )
            for name, cpu_ms in sorted(demand.whole_ms.items(), key=lambda item: -item[1])
            if cpu_ms
        ),
    )  # fmt: skip
    yield f"""
PostgreSQL commits {demand.commits:.1f} transactions a turn (those of background work included),
flushes its log {demand.flushes:.1f} times and writes {demand.wal_bytes / 1000:.0f} KB to it. A
turn of a single client took {demand.response_ms:.1f} ms.

## Service times of the RPCs

From traces of a cluster with one client; *own* is the time in which a call waited for no statement
and for no other call. Tracing adds about a tenth.
"""
    yield from _table(
        ("service", "method", "calls a turn", "time of a call", "own"),
        (
            (rpc.service, f"`{rpc.method}`", f"{rpc.calls:.2f}", f"{rpc.total_ms:.1f} ms",
             f"{rpc.own_ms:.1f} ms")
            for rpc in report.rpcs
        ),
    )  # fmt: skip
    yield f"""
## Prediction and measurement

The model is a closed queueing network (mean value analysis, `benchmarks/capacity/queueing.py`). On
one machine all processes share its processors, those of the client and of the model double
included, so more replicas cannot raise the throughput here; they show what replicas cost by
themselves. A turn needs {sum(demand.turn_ms.values()):.1f} ms of all processors together. Work
in the background waits during such a load and is not part of it. The error is that of the
predicted throughput. With two and four replicas of each service, 14 and 28 processes share the
processors and their caches, which the model does not know: the errors of these rows say what
replicas on one machine cost, and nothing about a cluster.
"""
    yield from _table(
        ("replicas of each service", "clients", "predicted", "measured", "error", "time of a turn"),
        (
            (
                str(load.replicas), str(load.clients),
                f"{(predicted := predicted_on(demand, load, processors)):.1f} turns/s",
                f"{load.throughput:.1f} turns/s",
                f"{predicted / load.throughput - 1:+.0%}",
                f"{load.median_ms:.0f} ms, p95 {load.p95_ms:.0f} ms",
            )
            for load in report.loads
        ),
    )  # fmt: skip
    yield f"""
## Predicted clusters

Each replica has a processor as fast as those above, PostgreSQL has {_DATABASE_PROCESSORS}, and the
vector engine has as many as there are replicas. The times are those of Strata at {_UTILISATION:.0%}
of the capacity, for turns that arrive independently (M/M/c at each station); the time of a real
model is added to them. **These figures are predictions**: no cluster of several machines was
measured.
"""
    yield from _table(
        ("replicas of each service", "capacity", "first bottleneck", f"time at {_UTILISATION:.0%}"),
        (
            (
                str(cluster.replicas), f"{cluster.capacity:.0f} turns/s", cluster.bottleneck,
                f"{cluster.response_ms:.0f} ms, p95 {cluster.p95_ms:.0f} ms",
            )
            for cluster in (forecast(demand, report.rpcs, replicas) for replicas in _REPLICAS)
        ),
    )  # fmt: skip
    yield f"""
## Sizes

Processors (for a service: replicas) with which each station is busy for at most
{_UTILISATION:.0%} of the time, and what PostgreSQL's disk has to do.
"""
    sizes = {rate: servers_for(demand.whole_ms, rate, _UTILISATION) for rate in _RATES}
    names = list(demand.whole_ms)
    yield from _table(
        ("", *(f"{rate:,} turns/s" for rate in _RATES)),
        (
            *((name, *(f"{sizes[rate][name]:,}" for rate in _RATES)) for name in names),
            ("commits a second", *(f"{rate * demand.commits:,.0f}" for rate in _RATES)),
            (
                "flushes a second without group commit",
                *(f"{rate * demand.flushes:,.0f}" for rate in _RATES),
            ),
            (
                "log of PostgreSQL, MB/s",
                *(f"{rate * demand.wal_bytes / 1e6:,.1f}" for rate in _RATES),
            ),
            (
                "new vectors a day (two messages a turn)",
                *(f"{math.ceil(rate * 2 * 86_400 / 1e6):,} million" for rate in _RATES),
            ),
        ),
    )
    yield _REMEDIES.rstrip()
    yield ""


_REMEDIES = """
## The first bottleneck, and what is done about it

- **At 100 turns a second** it is recall, which also embeds the messages. Replicas are added to
  each service by itself (`k8s/`). PostgreSQL is one server of a few processors. One flush
  of its log serves all transactions that commit at that moment (group commit), so a disk that
  flushes in a millisecond is enough.
- **At 1,000 turns a second** it is PostgreSQL, the first station to which no replicas can be
  added: its processors, and the commits. Projects are
  placed on several *partitions*, each a database server of its own
  ([0154](../decisions/0154-partitions-by-project.md)); every statement names its project, so no
  transaction spans two. With a partition for every 500 turns a second, each server has an ordinary
  size. What remains is the limit of one project, which is on one partition. Read replicas do not
  help a turn: five of its nine statements write, and the others read what was just written.
- **At 10,000 turns a second** there are about twenty partitions, and the vector engine is the next
  limit: the new vectors of each day need memory and shards. The project is the tenant key of its
  index, so Qdrant can place projects on shards, and each partition has collections of its own.
  Embedding is work of recall and archival in the background; it may be minutes late without
  delaying a turn, because full text finds a message at once.
- The partition `default` has the keys of all projects. A gateway reads each key twice a minute,
  which does not grow with the turns.
"""


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|---|{'--:|' * (len(titles) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
