"""Measures plain turns of libraries that run in the caller's process.

They ask the same model double, store conversations in databases of their own on the PostgreSQL of
the run, and have a system prompt of the same length as Strata's.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.floors import create_database
from benchmarks.peers.environment import InstallError, PeerEnvironment
from benchmarks.peers.peer import PEERS, Peer, PeerProcess
from benchmarks.report import Row
from benchmarks.samples import Samples
from benchmarks.system import System

_CHUNK = 10
_TURNS_PER_CONVERSATION = 20


@dataclass(slots=True)
class _Measured:
    """A peer and what was measured of it; processor times in milliseconds."""

    peer: Peer
    process: PeerProcess
    turns: Samples = field(default_factory=Samples)
    own_cpu: float = 0.0
    postgres_cpu: float = 0.0


async def peers(bench: Bench) -> None:
    """Measures plain turns of each peer; leaves them out if they cannot be installed."""
    environment = PeerEnvironment()
    try:
        await asyncio.to_thread(environment.prepare)
    except InstallError as error:
        print(f"... peers are left out: {error}", file=sys.stderr, flush=True)
        return
    agent = await bench.client.new_agent()
    system_prompt = system_text(await bench.model.request_of(bench.client, agent))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strata-peers-")))
        running = []
        for peer in PEERS:
            arguments = await open_database(bench.system, bench.model.url, peer)
            arguments += ["--system-prompt", str(write_prompt(folder, system_prompt))]
            process = await PeerProcess.start(environment.python, peer, arguments, folder)
            stack.push_async_callback(process.stop)
            running.append(_Measured(peer, process))
        await _measure(bench, running)
    for measured in running:
        bench.report.add(*_rows(measured))


def system_text(request_body: bytes) -> str:
    """Returns the text of the system messages of a Chat Completions request."""
    messages = json.loads(request_body)["messages"]
    return "\n\n".join(
        message["content"] for message in messages if message["role"] in ("system", "developer")
    )


def write_prompt(folder: Path, text: str) -> Path:
    """Writes the system prompt to a file that programs read."""
    path = folder / "system-prompt.txt"
    path.write_text(text, "utf-8")
    return path


async def open_database(system: System, model_url: str, peer: Peer) -> list[str]:
    """Creates the database of a peer; returns the arguments that name it and the model."""
    await create_database(system.database_url("postgres"), peer.database)
    return ["--model-url", model_url, "--database-url", system.database_url(peer.database)]


async def _measure(bench: Bench, running: list[_Measured]) -> None:
    # The peers take turns in chunks, so that other load affects all of them.
    for number, texts in enumerate(_chunks(bench.effort.turns)):
        conversation = f"conversation-{number * _CHUNK // _TURNS_PER_CONVERSATION}"
        for measured in running:
            if number % (_TURNS_PER_CONVERSATION // _CHUNK) == 0:
                await measured.process.send(conversation, ["Hello."])
            before = _postgres_cpu(bench.system)
            answer = await measured.process.send(conversation, texts)
            measured.postgres_cpu += _postgres_cpu(bench.system) - before
            measured.own_cpu += answer.cpu_ms
            measured.turns.values += answer.turn_ms


def _chunks(count: int) -> Iterator[list[str]]:
    for start in range(0, count, _CHUNK):
        numbers = range(start, min(start + _CHUNK, count))
        yield [f"Good morning, this is message {number}." for number in numbers]


def _postgres_cpu(system: System) -> float:
    return system.usage().cpu_ms.get("postgres", 0.0)


def _rows(measured: _Measured) -> tuple[Row, Row]:
    turns = measured.turns
    own, postgres = measured.own_cpu / len(turns), measured.postgres_cpu / len(turns)
    name = f"{measured.peer.name}, plain turn"
    return (
        Row(name, turns.median, "ms", p95=turns.p95, samples=len(turns)),
        Row(
            f"{name}, CPU",
            own + postgres,
            "ms CPU",
            samples=len(turns),
            note=f"python {own:.1f}, postgres {postgres:.1f}",
        ),
    )
