"""Measures a quiet project while another one uses all slots that it may have."""

from __future__ import annotations

import asyncio
import time
import uuid

from benchmarks.bench import Bench
from benchmarks.client import Client
from benchmarks.report import Row
from benchmarks.samples import Samples
from benchmarks.tools_service import ToolsService, open_tools_service

_SLEEPING = 60
_BUSY = 60
_NOISE_ALONE_S = 5.0
_MOST_TIMES = 2.0
# Pause between two turns of the quiet agent.
_PAUSE_S = 0.05
_ADD = '''
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b
'''
_SLEEP = '''
import time

def doze(seconds: int) -> int:
    """Sleeps."""
    time.sleep(seconds)
    return seconds
'''


async def noisy_neighbour(bench: Bench) -> None:
    """Calls a trivial tool alone, and then while another project runs 60 sleeping tools.

    Each tool that ends is followed by another.
    """
    async with open_tools_service() as service:
        await service.put(_ADD)

        async def call() -> None:
            if '"5"' not in (tool_return := await service.execute("add", a=2, b=3)):
                raise RuntimeError(f"the tool gave another sum: {tool_return}")

        count = bench.effort.calls
        alone, beside = Samples(), Samples()
        for _ in range(5):
            await call()
        await alone.time(count, call)
        with service.sign_in():
            await service.put(_SLEEP)
            noise = [asyncio.create_task(_sleep(service)) for _ in range(_SLEEPING)]
        try:
            # Until the maximum number of tools run.
            await asyncio.sleep(2.0)
            await beside.time(count, call)
        finally:
            for task in noise:
                task.cancel()
            await asyncio.gather(*noise, return_exceptions=True)
    bench.report.add(
        Row("quiet project alone (ExecuteTools), p95", alone.p95, "ms", samples=len(alone)),
        Row(f"quiet project beside {_SLEEPING} sleeping tools, p95", beside.p95, "ms",
            floor=alone.p95, floor_name="alone", target=_MOST_TIMES * alone.p95,
            samples=len(beside)),
    )  # fmt: skip


async def noisy_turns(bench: Bench) -> None:
    """Makes turns alone, and then while another project has 60 clients that send without pause."""
    agent = await bench.client.new_agent()
    alone, beside = Samples(), Samples()
    for number in range(5):
        await bench.client.turn(agent, f"Good morning, this is message {number}.")
    await _take_turns(bench, agent, alone)
    credentials = await bench.system.new_project(f"noisy-{uuid.uuid4().hex[:8]}")
    async with bench.system.channel() as channel:
        noisy = Client(channel, credentials)
        agents = [await noisy.new_agent() for _ in range(_BUSY)]
        noise_turns = Samples()
        noise = [
            asyncio.create_task(_send_without_pause(noisy, agent_id, noise_turns))
            for agent_id in agents
        ]
        try:
            await asyncio.sleep(_NOISE_ALONE_S)
            noise_alone = len(noise_turns) / _NOISE_ALONE_S
            started = time.perf_counter()
            await _take_turns(bench, agent, beside)
            noise_beside = (len(noise_turns) - noise_alone * _NOISE_ALONE_S) / (
                time.perf_counter() - started
            )
        finally:
            for task in noise:
                task.cancel()
            await asyncio.gather(*noise, return_exceptions=True)
    bench.report.add(
        Row("turn of a quiet project alone, p95", alone.p95, "ms", samples=len(alone)),
        Row(f"turn of a quiet project beside {_BUSY} busy agents, p95", beside.p95, "ms",
            floor=alone.p95, floor_name="alone", target=_MOST_TIMES * alone.p95,
            samples=len(beside)),
        Row(f"{_BUSY} busy agents alone", noise_alone, "turns/s"),
        Row(f"{_BUSY} busy agents beside a quiet project", noise_beside, "turns/s",
            floor=noise_alone, floor_name="alone"),
    )  # fmt: skip


async def _take_turns(bench: Bench, agent: str, turns: Samples) -> None:
    for number in range(bench.effort.turns // 2):
        turn = await bench.client.turn(agent, f"Good evening, this is message {number}.")
        turns.add(turn.total)
        await asyncio.sleep(_PAUSE_S)


async def _send_without_pause(client: Client, agent: str, turns: Samples) -> None:
    while True:
        turn = await client.turn(agent, f"Good morning, this is message {len(turns)}.")
        turns.add(turn.total)


async def _sleep(service: ToolsService) -> None:
    while True:
        await service.execute("doze", seconds=10)
