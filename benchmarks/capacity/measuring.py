"""Measures what a plain turn needs of each service, and the throughput of clusters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.bench import Model
from benchmarks.capacity.cluster import Cluster, open_cluster
from benchmarks.client import Client
from benchmarks.samples import Samples
from doubles.otlp_collector import CollectedSpan, OtlpCollector

CLIENT, MODEL = "client", "model"
"""Stations of this machine only: the benchmark's own client, and the model double."""
_WARM_UP_TURNS = 20
_TURNS_ALONE = 100
_TURNS_PER_AGENT = 20
_TRACED_TURNS = 100
_TRACES_S = 5.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What one plain turn needs, measured under load.

    Attributes:
        turn_ms: Processor time in milliseconds by service, engine, `CLIENT` and `MODEL`, until the
            last turn had ended.
        background_ms: The processor time of the work that followed in the background.
        response_ms: Median time of a turn of a single client.
        commits: Transactions that PostgreSQL committed, including background work.
        flushes: Flushes of its log.
        wal_bytes: Bytes of its log.
    """

    turn_ms: dict[str, float]
    background_ms: dict[str, float]
    response_ms: float
    commits: float
    flushes: float
    wal_bytes: float

    @property
    def delay_ms(self) -> float:
        """Time of a turn without a processor: commits, and hops between processes."""
        return max(self.response_ms - sum(self.turn_ms.values()), 0.0)

    @property
    def whole_ms(self) -> dict[str, float]:
        """Processor time by service and engine, with the work in the background."""
        return {
            name: cpu_ms + self.background_ms.get(name, 0.0)
            for name, cpu_ms in self.turn_ms.items()
            if name not in (CLIENT, MODEL)
        }


@dataclass(frozen=True, slots=True)
class Load:
    """Turns of several clients at once, each of which sends again when it has its reply.

    Attributes:
        replicas: Replicas of each service.
        clients: Number of clients, each with an agent of its own.
        turns: Number of turns.
        throughput: Turns per second.
        median_ms: Median time of a turn.
        p95_ms: 95th percentile of the time of a turn.
    """

    replicas: int
    clients: int
    turns: int
    throughput: float
    median_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class Rpc:
    """An RPC of a plain turn.

    Attributes:
        service: The service that serves it.
        method: Its name.
        calls: Calls per turn.
        total_ms: Mean time of a call.
        own_ms: The same without the time in which it waited for its statements and calls.
    """

    service: str
    method: str
    calls: float
    total_ms: float
    own_ms: float


async def measure_demand(cluster: Cluster, model: Model, clients: int, seconds: float) -> Demand:
    """Measures turns of several clients at once, and the work in the background that follows."""
    async with cluster.clients() as gateways:
        await _talk(gateways[0], _WARM_UP_TURNS)
        response = (await _talk(gateways[0], _TURNS_ALONE)).median
    await cluster.settle()
    counts, before = await cluster.database(), _cpu(cluster, model)
    turns = (await measure_load(cluster, clients, seconds)).turns
    after = _cpu(cluster, model)
    await cluster.settle()
    counts = await cluster.database() - counts
    settled = _cpu(cluster, model)
    return Demand(
        {name: cpu_ms / turns for name, cpu_ms in (after - before).items()},
        {name: cpu_ms / turns for name, cpu_ms in (settled - after).items()},
        response,
        counts["commits"] / turns,
        counts["flushes"] / turns,
        counts["wal_bytes"] / turns,
    )


async def measure_load(cluster: Cluster, clients: int, seconds: float) -> Load:
    """Measures the throughput of several clients, which are spread over the gateways."""
    turns = Samples()
    async with cluster.clients() as gateways:
        pairs = []
        for number in range(clients):
            client = gateways[number % len(gateways)]
            agent = await client.new_agent()
            await client.turn(agent, "Hello.")
            pairs.append((client, agent))
        started = time.perf_counter()

        async def talk(client: Client, agent: str) -> None:
            while time.perf_counter() < started + seconds:
                turn = await client.turn(agent, f"Good morning, this is message {len(turns)}.")
                turns.add(turn.total)

        async with asyncio.TaskGroup() as group:
            for client, agent in pairs:
                group.create_task(talk(client, agent))
        took = time.perf_counter() - started
    return Load(cluster.replicas, clients, len(turns), len(turns) / took, turns.median, turns.p95)


async def measure_rpcs(folder: Path, model: Model) -> list[Rpc]:
    """Measures the RPCs of plain turns, from the traces of a separate cluster."""
    async with (
        OtlpCollector() as collector,
        open_cluster(folder, model.url, 1, {"STRATA_TRACES_ENDPOINT": collector.url}) as cluster,
        cluster.clients() as clients,
    ):
        await _talk(clients[0], _WARM_UP_TURNS)
        await asyncio.sleep(_TRACES_S)
        collector.spans.clear()
        await _talk(clients[0], _TRACED_TURNS)
        await asyncio.sleep(_TRACES_S)
        return rpcs_of(collector.spans, _TRACED_TURNS)


def rpcs_of(spans: Sequence[CollectedSpan], turns: int) -> list[Rpc]:
    """Returns the RPCs of the traces that a call of `SendMessage` began, most own time first.

    Args:
        spans: Spans of all traces.
        turns: Number of turns that they are of.
    """
    trace_ids = {span.trace_id for span in spans if span.name.endswith("/SendMessage")}
    children: defaultdict[str, list[CollectedSpan]] = defaultdict(list)
    for span in spans:
        children[span.parent_id].append(span)
    totals: Counter[tuple[str, str]] = Counter()
    owns: Counter[tuple[str, str]] = Counter()
    calls: Counter[tuple[str, str]] = Counter()
    for span in spans:
        if span.trace_id in trace_ids and span.kind == "SERVER":
            key = span.service, span.name.rpartition(".")[2]
            calls[key] += 1
            totals[key] += span.end_ns - span.start_ns
            owns[key] += _own_ns(span, children)
    rpcs = [
        Rpc(
            *key, count / turns, totals[key] / count / 1e6, owns[key] / count / 1e6
        )
        for key, count in calls.items()
    ]  # fmt: skip
    return sorted(rpcs, key=lambda rpc: -rpc.own_ms * rpc.calls)


def _own_ns(span: CollectedSpan, children: dict[str, list[CollectedSpan]]) -> int:
    """Returns the time of a span in which none of the spans beneath it was under way."""
    waits = sorted(
        (max(child.start_ns, span.start_ns), min(child.end_ns, span.end_ns))
        for child in _waits(span, children)
    )
    own, until = 0, span.start_ns
    for start, end in waits:
        own += max(start - until, 0)
        until = max(until, end)
    return own + max(span.end_ns - until, 0)


def _waits(span: CollectedSpan, children: dict[str, list[CollectedSpan]]) -> list[CollectedSpan]:
    """Returns the outermost spans beneath a span that are waits: statements and calls."""
    waits = []
    for child in children[span.span_id]:
        waits += [child] if child.kind == "CLIENT" else _waits(child, children)
    return waits


async def _talk(client: Client, turns: int) -> Samples:
    samples = Samples()
    agent = ""
    for number in range(turns):
        if number % _TURNS_PER_AGENT == 0:
            agent = await client.new_agent()
        samples.add((await client.turn(agent, f"Good morning, this is message {number}.")).total)
    return samples


def _cpu(cluster: Cluster, model: Model) -> Counter[str]:
    own = psutil.Process().cpu_times()
    times = cluster.cpu_ms()
    times[CLIENT] = round((own.user + own.system) * 1000)
    times[MODEL] = round(model.cpu_ms())
    return times
