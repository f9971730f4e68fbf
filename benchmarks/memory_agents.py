"""Turns of agents, with and without memory agents at work behind them."""

from __future__ import annotations

import asyncio
import statistics
import time

import asyncpg

from benchmarks.bench import Bench, Effort
from benchmarks.processes import Usage
from benchmarks.report import Row
from benchmarks.samples import Samples

_AGENTS = 50
_TURNS_PER_S = 4.0
_MOST_TIMES = 1.1
_MOST_DRAIN_S = 120.0
_ENDED = "SELECT count(*) FROM gateway.runs WHERE kind = 'SLEEPTIME' AND state = 'COMPLETED'"
_UNREAD = """
SELECT count(*) FROM gateway.memory_agents WHERE newest_sequence > last_processed_sequence
"""


async def memory_agents(bench: Bench) -> None:
    """Sends to 50 agents at a steady pace, in turn without and with a memory agent each.

    With a memory agent each turn is followed by a run of it, which edits a block. The two forms
    take turns in short blocks, so that both meet the same load of the machine; a block without
    begins when all memory agents have read everything. The model double runs on the same
    processors, so its processor time is shown.
    """
    plain = [await bench.client.new_agent() for _ in range(_AGENTS)]
    tended = [await bench.client.new_agent(sleeptime_frequency=1) for _ in range(_AGENTS)]
    await _send(bench, plain, Samples())
    await _send(bench, tended, Samples())
    await _until_read(bench)
    without, beside = Samples(), Samples()
    ratios: dict[str, list[float]] = {"p95": [], "median": []}
    drains, cpu = [], {"without": 0.0, "beside": 0.0}
    runs_before = await _ended_runs(bench)
    runs_beside = 0
    for _ in range(bench.effort.rounds):
        arms = {}
        for name, agents in (("without", plain), ("beside", tended)):
            arm, used = Samples(), bench.model.usage()
            runs_beside -= await _ended_runs(bench)
            await _send(bench, agents, arm)
            cpu[name] += _cpu(bench.model.usage()) - _cpu(used)
            runs_beside += await _ended_runs(bench)
            arms[name] = arm
        drains.append(await _until_read(bench))
        without.values += arms["without"].values
        beside.values += arms["beside"].values
        ratios["p95"].append(arms["beside"].p95 / arms["without"].p95)
        ratios["median"].append(arms["beside"].median / arms["without"].median)
    runs = await _ended_runs(bench) - runs_before
    if not runs_beside:
        raise RuntimeError("no memory agent was at work")
    spread = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios["p95"]))
    double = f"model double {cpu['beside'] / len(beside):.1f} ms CPU a turn"
    bench.report.add(
        Row("turn without memory agents", without.median, "ms", p95=without.p95,
            samples=len(without),
            note=f"model double {cpu['without'] / len(without):.1f} ms CPU a turn"),
        Row(f"turn beside {_AGENTS} memory agents at work", beside.median, "ms", p95=beside.p95,
            floor=without.median, floor_name="without", samples=len(beside), note=double),
        Row("p95 beside / without, median of blocks", statistics.median(ratios["p95"]), "x",
            target=_MOST_TIMES, samples=bench.effort.rounds, note=spread),
        Row("median beside / without, median of blocks", statistics.median(ratios["median"]), "x",
            samples=bench.effort.rounds),
        Row("runs of memory agents", float(runs), "",
            note=f"for {len(beside)} turns, {runs_beside} while turns were sent"),
        Row("last turn until everything is read", statistics.median(drains), "s",
            samples=bench.effort.rounds),
    )  # fmt: skip


async def _send(bench: Bench, agents: list[str], turns: Samples) -> None:
    """Sends at a steady pace, whether or not the turns before have ended."""

    async def take(agent: str, number: int) -> None:
        turn = await bench.client.turn(agent, f"Good morning, this is message {number}.")
        turns.add(turn.total)

    count = int(_AGENTS * bench.effort.load_s / Effort().load_s)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(take(agents[number % len(agents)], number))
            await asyncio.sleep(1 / _TURNS_PER_S)


async def _until_read(bench: Bench) -> float:
    """Waits until the memory agents have read everything; returns the seconds that took."""
    started = time.perf_counter()
    while await _query(bench, _UNREAD):
        if time.perf_counter() - started > _MOST_DRAIN_S:
            raise RuntimeError("memory agents are starved")
        await asyncio.sleep(0.5)
    return time.perf_counter() - started


async def _ended_runs(bench: Bench) -> int:
    return await _query(bench, _ENDED)


async def _query(bench: Bench, statement: str) -> int:
    connection = await asyncpg.connect(bench.system.database_url("strata"))
    try:
        count: int = await connection.fetchval(statement)
        return count
    finally:
        await connection.close()


def _cpu(usage: Usage) -> float:
    return sum(usage.cpu_ms.values())
