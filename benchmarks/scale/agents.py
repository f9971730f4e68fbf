"""Measures turns of a thousand agents, with few agents stored and with a hundred thousand."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.bench import Model
from benchmarks.client import Client
from benchmarks.report import Report, Row
from benchmarks.samples import Samples
from benchmarks.system import System

_AT_ONCE = 16
_MOST_TIMES = 1.2


async def measure(folder: Path, report: Report, stored_agents: int, talking: int) -> None:
    """Makes turns of `talking` agents one after the other, before and after others are stored.

    Args:
        folder: An empty folder that other users can pass through.
        report: Gets the results.
        stored_agents: Number of agents in the end.
        talking: Number of agents that take a turn in each round.
    """
    async with AsyncExitStack() as stack:
        model = await Model.start(folder, stack)
        system = System(
            folder / "data",
            model.url,
            split=False,
            # The agents are created as fast as possible.
            settings={"STRATA_GATEWAY_CALLS_PER_SECOND": "0"},
        )
        await system.start()
        stack.push_async_callback(system.stop)
        channel = await stack.enter_async_context(system.channel())
        client = Client(channel, system.credentials())
        agents = await _create(client, talking)
        # The first turn of an agent also creates its conversation.
        await _round(client, agents)
        before, cpu_before = await _measured_round(system, client, agents)
        started = time.perf_counter()
        await _create(client, stored_agents - talking)
        seconds = time.perf_counter() - started
        after, cpu_after = await _measured_round(system, client, agents)
        listing = Samples()
        await listing.time(50, client.list_agents)
        report.add(
            Row(f"turn, each of {talking:,} agents in turn", before.median, "ms", p95=before.p95,
                samples=len(before), note=f"{cpu_before:.1f} ms CPU, no other agent stored"),
            Row(f"the same, {stored_agents:,} agents stored", after.median, "ms", p95=after.p95,
                floor=before.median, floor_name="few stored",
                target=_MOST_TIMES * before.median, samples=len(after),
                note=f"{cpu_after:.1f} ms CPU"),
            Row(f"first page of {stored_agents:,} agents", listing.median, "ms", p95=listing.p95,
                samples=len(listing)),
            Row("agents created", (stored_agents - talking) / seconds, "a second",
                samples=stored_agents - talking, note=f"{_AT_ONCE} at once"),
        )  # fmt: skip


async def _create(client: Client, count: int) -> list[str]:
    async def create(share: int) -> list[str]:
        return [await client.new_agent() for _ in range(share)]

    shares = [len(range(first, count, _AT_ONCE)) for first in range(_AT_ONCE)]
    return [agent for part in await asyncio.gather(*map(create, shares)) for agent in part]


async def _measured_round(
    system: System, client: Client, agents: list[str]
) -> tuple[Samples, float]:
    """Returns the times of a turn of each agent, and the processor time of one, in milliseconds."""
    await system.until_calm()
    before = sum(system.usage().cpu_ms.values())
    turns = await _round(client, agents)
    return turns, (sum(system.usage().cpu_ms.values()) - before) / len(agents)


async def _round(client: Client, agents: list[str]) -> Samples:
    turns = Samples()
    for agent in agents:
        turns.add((await client.turn(agent, "Good morning, this is a message.")).total)
    return turns
