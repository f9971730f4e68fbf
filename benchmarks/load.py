"""Measures concurrent agents, each with a client that sends a message after every reply."""

from __future__ import annotations

import asyncio
import time

from benchmarks.bench import Bench
from benchmarks.report import Row
from benchmarks.samples import Samples


async def eight_agents(bench: Bench) -> None:
    """Measures eight concurrent agents."""
    await _load(bench, 8)


async def thirty_agents(bench: Bench) -> None:
    """Measures thirty concurrent agents."""
    await _load(bench, 30)


async def _load(bench: Bench, agents: int) -> None:
    ids = [await bench.client.new_agent() for _ in range(agents)]
    turns = Samples()
    before = bench.system.usage().cpu_ms
    started = time.perf_counter()
    end = started + bench.effort.load_s
    async with asyncio.TaskGroup() as group:
        for agent in ids:
            group.create_task(_talk(bench, agent, end, turns))
    seconds = time.perf_counter() - started
    after = bench.system.usage().cpu_ms
    cpu = sum(after.values()) - sum(before.values())
    bench.report.add(
        Row(f"{agents} agents at once", len(turns) / seconds, "turns/s", samples=len(turns),
            note=f"{cpu / len(turns):.1f} ms CPU each"),
        Row(f"{agents} agents at once, turn", turns.median, "ms", p95=turns.p95,
            samples=len(turns)),
    )  # fmt: skip


async def _talk(bench: Bench, agent: str, end: float, turns: Samples) -> None:
    number = 0
    while time.perf_counter() < end:
        number += 1
        turn = await bench.client.turn(agent, f"Good morning, this is message {number}.")
        turns.add(turn.total)
