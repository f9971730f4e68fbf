"""Measures a quiet project while another one uses all slots that it may have."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial

from benchmarks.bench import Bench
from benchmarks.client import Client
from benchmarks.report import Row
from benchmarks.samples import Samples
from benchmarks.texts import facts
from benchmarks.tools_service import ToolsService, open_tools_service

_SLEEPING = 60
_BUSY = 60
_NOISE_ALONE_S = 5.0
_MOST_TIMES = 2.0
# Clients of a project that sends everything, by what they send.
_AGENTS = 30
_CLIENTS = 8
_PARAGRAPHS = 12
_FLOOD_S = 3.0
_KINDS = ("turns", "tools", "searches", "uploads")
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


async def noisy_project(bench: Bench) -> None:
    """Makes turns alone, and while another project sends turns, tools, searches and uploads.

    Each kind is sent alone, and then all at once. Half of the uploads are web pages, each of which
    a child process converts.
    """
    agent = await bench.client.new_agent()
    alone = Samples()
    for number in range(5):
        await bench.client.turn(agent, f"Good morning, this is message {number}.")
    for _ in range(2):
        await _take_turns(bench, agent, alone)
    bench.report.add(
        Row("turn of a quiet project alone, before a flood, p95", alone.p95, "ms",
            samples=len(alone)),
    )  # fmt: skip
    credentials = await bench.system.new_project(f"noisy-{uuid.uuid4().hex[:8]}")
    async with bench.system.channel() as channel:
        for kinds in (*((kind,) for kind in _KINDS), _KINDS):
            agent = await bench.client.new_agent()
            beside = Samples()
            flood = _Flood(Client(channel, credentials), kinds)
            async with flood.sent():
                await asyncio.sleep(_FLOOD_S)
                flood.sent_count.clear()
                started = time.perf_counter()
                await _take_turns(bench, agent, beside)
                seconds = time.perf_counter() - started
                counts = flood.sent_count.copy()
            name = ", ".join(kinds)
            bench.report.add(
                Row(f"turn of a quiet project beside a flood of {name}, p95", beside.p95, "ms",
                    floor=alone.p95, floor_name="alone", target=_MOST_TIMES * alone.p95,
                    samples=len(beside)),
                *(Row(f"that flood: {kind}", count / seconds, "a second")
                  for kind, count in sorted(counts.items())),
            )  # fmt: skip


class _Flood:
    """What a project can send, without pause.

    Args:
        client: Of the project.
        kinds: What it sends, of `_KINDS`.
    """

    def __init__(self, client: Client, kinds: Collection[str]) -> None:
        self._client = client
        self._kinds = kinds
        self.sent_count: Counter[str] = Counter()

    @asynccontextmanager
    async def sent(self) -> AsyncIterator[None]:
        """Sends as long as the block runs, and deletes the files then."""
        await self._client.put_tool(_ADD)
        agents = [await self._client.new_agent() for _ in range(_AGENTS)]
        for text in facts(_AGENTS):
            await self._client.insert_passage(agents[0], text)
        folder = await self._client.new_folder()
        works: dict[str, list[Callable[[], Awaitable[object]]]] = {
            "turns": [partial(self._turn, agent) for agent in agents],
            "tools": [self._tool] * _CLIENTS,
            "uploads": [
                partial(self._upload, folder, suffix)
                for suffix in ("txt", "html") * (_CLIENTS // 2)
            ],
            "searches": [partial(self._search, agents[0])] * _CLIENTS,
        }
        tasks = [
            asyncio.create_task(self._repeat(kind, work))
            for kind in self._kinds
            for work in works[kind]
        ]
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()  # raises its error: the flood was smaller than meant
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._client.delete_folder(folder)

    async def _repeat(self, kind: str, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await work()
            self.sent_count[kind] += 1

    async def _turn(self, agent: str) -> None:
        await self._client.turn(agent, f"Good morning, it is {time.monotonic_ns()}.")

    async def _tool(self) -> None:
        await self._client.run_tool("add", '{"a": 2, "b": 3}')

    async def _upload(self, folder: str, suffix: str) -> None:
        # Texts differ: equal ones are converted and embedded once.
        name = uuid.uuid4().hex
        text = "".join(f"<p>{name} {fact}</p>" for fact in facts(_PARAGRAPHS))
        page = f"<html><body>{text}</body></html>" if suffix == "html" else text
        await self._client.upload_file(folder, f"{name}.{suffix}", page)

    async def _search(self, agent: str) -> None:
        # The query must not be in the cache of vectors.
        await self._client.search_passages(agent, f"Who keeps note {time.monotonic_ns()}?")


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
