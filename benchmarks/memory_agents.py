"""Turns of agents, with and without memory agents at work behind them."""

from __future__ import annotations

import asyncio
import itertools

from benchmarks.bench import Bench
from benchmarks.report import Row
from benchmarks.samples import Samples

_AGENTS = 50
_TURNS_PER_S = 8.0
_MOST_TIMES = 1.1


async def memory_agents(bench: Bench) -> None:
    """Sends to 50 agents at a steady pace, first without and then with a memory agent each.

    With a memory agent each turn is followed by a run of it: as many runs again as turns.
    """
    without, beside = Samples(), Samples()
    plain = [await bench.client.new_agent() for _ in range(_AGENTS)]
    await _send(bench, plain, without)
    tended = [await bench.client.new_agent(sleeptime_frequency=1) for _ in range(_AGENTS)]
    await _send(bench, tended, beside)
    read = await bench.client.count_read(tended)
    if not read:
        raise RuntimeError("no memory agent was at work")
    bench.report.add(
        Row("turn without memory agents, p95", without.p95, "ms", samples=len(without)),
        Row(f"turn beside {_AGENTS} memory agents at work, p95", beside.p95, "ms",
            floor=without.p95, floor_name="without", target=_MOST_TIMES * without.p95,
            samples=len(beside)),
        Row("agents whose memory agent has read something by then", float(read), ""),
    )  # fmt: skip


async def _send(bench: Bench, agents: list[str], turns: Samples) -> None:
    """Sends at a steady pace, whether or not the turns before have ended."""

    async def take(agent: str, number: int) -> None:
        turn = await bench.client.turn(agent, f"Good morning, this is message {number}.")
        turns.add(turn.total)

    count = max(_AGENTS, int(_TURNS_PER_S * bench.effort.load_s * 2))
    async with asyncio.TaskGroup() as group:
        for number, agent in enumerate(itertools.islice(itertools.cycle(agents), count)):
            group.create_task(take(agent, number))
            await asyncio.sleep(1 / _TURNS_PER_S)
