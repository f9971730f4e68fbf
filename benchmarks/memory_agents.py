"""Measures turns of agents while memory agents run in the background, and while they do not."""

from __future__ import annotations

import asyncio
import statistics
import time

import asyncpg

from benchmarks.bench import Bench, Effort
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
    """Sends to agents at a steady rate while memory agents are idle, and while 50 of them run.

    Three cases alternate in short blocks, so that all see the same load of the machine: agents
    without memory agents while none runs; agents with one memory agent each, whose turns are each
    followed by a run that edits a block; and again the agents without one, while the memory agents
    of the others run. The first case starts when the memory agents have read all messages. The
    model double runs on the same processors, so its processor time is shown.
    """
    plain = [await bench.client.new_agent() for _ in range(_AGENTS)]
    tended = [await bench.client.new_agent(sleeptime_frequency=1) for _ in range(_AGENTS)]
    await _send(bench, plain, Samples())
    await _send(bench, tended, Samples())
    await _until_read(bench)
    arms = {name: _Arm() for name in ("without", "tended", "beside")}
    drains = []
    for _ in range(bench.effort.rounds):
        for name, arm in arms.items():
            await arm.take(bench, tended if name == "tended" else plain)
        drains.append(await _until_read(bench))
    without, beside, of_tended = arms["without"], arms["beside"], arms["tended"]
    if not beside.runs:
        raise RuntimeError("no memory agent was at work")
    rounds = bench.effort.rounds
    bench.report.add(
        without.row("turn without memory agents"),
        beside.row(f"turn beside {_AGENTS} memory agents at work", without),
        of_tended.row("turn of an agent with a memory agent", without),
        Row("p95 beside / without, median of blocks", beside.ratio(without, "p95"), "x",
            target=_MOST_TIMES, samples=rounds, note=beside.ratios(without, "p95")),
        Row("median beside / without, median of blocks", beside.ratio(without, "median"), "x",
            samples=rounds, note=beside.ratios(without, "median")),
        Row("last turn until everything is read", statistics.median(drains), "s", samples=rounds),
    )  # fmt: skip


class _Arm:
    """The measured blocks of one case.

    Attributes:
        blocks: The turns of each block.
        cpu_ms: Processor time of the model double.
        runs: Runs of memory agents that ended meanwhile.
    """

    def __init__(self) -> None:
        self.blocks: list[Samples] = []
        self.cpu_ms = 0.0
        self.runs = 0

    async def take(self, bench: Bench, agents: list[str]) -> None:
        """Measures one block."""
        turns, cpu_ms, runs = Samples(), bench.model.cpu_ms(), await _ended_runs(bench)
        await _send(bench, agents, turns)
        self.cpu_ms += bench.model.cpu_ms() - cpu_ms
        self.runs += await _ended_runs(bench) - runs
        self.blocks.append(turns)

    def row(self, name: str, floor: _Arm | None = None) -> Row:
        """Returns the line of all turns."""
        turns = self.turns
        double = f"model double {self.cpu_ms / len(turns):.1f} ms CPU a turn"
        runs = f", {self.runs} runs of memory agents ended" if self.runs else ""
        return Row(
            name,
            turns.median,
            "ms",
            p95=turns.p95,
            floor=floor.turns.median if floor else None,
            floor_name="without" if floor else "",
            samples=len(turns),
            note=double + runs,
        )

    def ratio(self, other: _Arm, figure: str) -> float:
        """Returns the median of the ratios of the blocks."""
        return statistics.median(self._ratios(other, figure))

    def ratios(self, other: _Arm, figure: str) -> str:
        """Returns the ratios of all blocks as text."""
        return ", ".join(f"{ratio:.2f}" for ratio in sorted(self._ratios(other, figure)))

    def _ratios(self, other: _Arm, figure: str) -> list[float]:
        pairs = zip(self.blocks, other.blocks, strict=True)
        return [getattr(mine, figure) / getattr(theirs, figure) for mine, theirs in pairs]

    @property
    def turns(self) -> Samples:
        """The turns of all blocks."""
        return Samples([value for block in self.blocks for value in block.values])


async def _send(bench: Bench, agents: list[str], turns: Samples) -> None:
    """Sends at a steady rate, whether or not earlier turns have ended."""

    async def take(agent: str, number: int) -> None:
        turn = await bench.client.turn(agent, f"Good morning, this is message {number}.")
        turns.add(turn.total)

    count = int(_AGENTS * bench.effort.load_s / Effort().load_s)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(take(agents[number % len(agents)], number))
            await asyncio.sleep(1 / _TURNS_PER_S)


async def _until_read(bench: Bench) -> float:
    """Waits until the memory agents have read all messages; returns the seconds it took."""
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
