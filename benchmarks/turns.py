"""Measures turns, one after the other, with a client of the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.bench import Bench
from benchmarks.report import Row
from benchmarks.samples import Samples

OVERHEAD_TARGET_MS = 40.0

_CHUNK = 10
_LONG_REPLY_CHARS = 2000
# Characters in each piece of the double's replies.
_PIECE_CHARS = 8
_TURNS_PER_AGENT = 20
# Holds the messages of the long windows, so that none is compacted.
_LARGE_WINDOW_TOKENS = 200_000
# How many times the processor time of a turn with few messages one with many may take, by number
# of messages in the window.
_MOST_TIMES = {200: 1.3, 1000: 2.0}


async def plain_turn(bench: Bench) -> None:
    """Measures turns with a plain text reply, in short conversations.

    Floors are measured between the turns, so that other load affects both.
    """
    turns, first_text = Samples(), Samples()
    cpu: dict[str, float] = {}
    agent = ""
    for number, size in enumerate(_chunks(bench.effort.turns)):
        if number % (_TURNS_PER_AGENT // _CHUNK) == 0:
            agent = await _ready_agent(bench)
        before = bench.system.usage().cpu_ms
        for _ in range(size):
            turn = await bench.client.turn(agent, f"Good morning, this is message {len(turns)}.")
            turns.add(turn.total)
            first_text.add(turn.first_text)
        _count_cpu(cpu, before, bench.system.usage().cpu_ms)
        body = await bench.model.request_of(bench.client, agent)
        bench.floors.model.ask(body)
        bench.floors.sdk.ask(body)
        await bench.floors.model.measure(size)
        await bench.floors.sdk.measure(size)
        await bench.floors.measure(size)
    floors = bench.floors
    model, beneath = floors.model.samples.median, _beneath(bench)
    bench.report.add(
        Row("floor: commit of 1 KB, flushed", floors.commit.samples.median, "ms",
            p95=floors.commit.samples.p95, samples=len(floors.commit.samples)),
        Row("floor: gRPC call, 1 KB", floors.hop.samples.median, "ms",
            p95=floors.hop.samples.p95, samples=len(floors.hop.samples)),
        Row("floor: the model double's own time", model, "ms",
            p95=floors.model.samples.p95, samples=len(floors.model.samples)),
        Row("floor: the same through the SDK", floors.sdk.samples.median, "ms",
            p95=floors.sdk.samples.p95, floor=model, floor_name="model",
            samples=len(floors.sdk.samples)),
        Row("plain turn", turns.median, "ms", p95=turns.p95, floor=beneath + model,
            floor_name="commit + hop + model", samples=len(turns)),
        Row("plain turn, own", turns.median - model, "ms", p95=turns.p95 - model,
            floor=beneath, floor_name="commit + hop", target=OVERHEAD_TARGET_MS,
            samples=len(turns), note=f"best {turns.best - model:.1f}"),
        Row("plain turn, first text", first_text.median, "ms", p95=first_text.p95,
            samples=len(first_text)),
        _cpu_row("plain turn, CPU", cpu, len(turns)),
    )  # fmt: skip


async def long_window(bench: Bench) -> None:
    """Measures plain turns with few messages in the window, and in turn with many."""
    agents: dict[int, str] = {}
    for size in bench.effort.long_windows:
        agents[size] = await bench.client.new_agent(context_window=_LARGE_WINDOW_TOKENS)
        for number in range(size // 2):
            await bench.client.turn(agents[size], f"Good morning, this is message {number}.")
    # The messages that fill the windows are indexed in the background.
    await bench.system.until_calm()
    short, short_cpu = Samples(), dict[str, float]()
    turns = {size: Samples() for size in agents}
    cpu: dict[int, dict[str, float]] = {size: {} for size in agents}
    for count in _chunks(bench.effort.turns // 4):
        await _take_turns(bench, await _ready_agent(bench), count, short, short_cpu)
        for size, agent in agents.items():
            await _take_turns(bench, agent, count, turns[size], cpu[size])
        await bench.floors.measure(count)
    plain = _per_turn(short_cpu, short)
    for size, agent in agents.items():
        bench.floors.model.ask(await bench.model.request_of(bench.client, agent))
        model = Samples(await bench.floors.model.apart(_TURNS_PER_AGENT))
        name = f"turn, {size:,} messages in window"
        bench.report.add(
            Row(f"{name}, own", turns[size].median - model.median, "ms",
                p95=turns[size].p95 - model.median, floor=_beneath(bench),
                floor_name="commit + hop", samples=len(turns[size]),
                note=f"model {model.median:.1f}"),
            replace(_cpu_row(f"{name}, CPU", cpu[size], len(turns[size])), floor=plain,
                    floor_name="few messages", target=_MOST_TIMES.get(size, 2.0) * plain),
        )  # fmt: skip


async def long_reply(bench: Bench) -> None:
    """Measures a streamed reply of 250 pieces, and the cost of each piece."""
    agent = await _ready_agent(bench)
    reply = "x" * _LONG_REPLY_CHARS
    turns, model, short = Samples(), Samples(), Samples()
    cpu: dict[str, float] = {}
    for size in _chunks(max(bench.effort.turns // 10, _CHUNK)):
        agent = await _ready_agent(bench)
        before = bench.system.usage().cpu_ms
        for _ in range(size):
            turns.add((await bench.client.turn(agent, reply)).total)
        _count_cpu(cpu, before, bench.system.usage().cpu_ms)
        for _ in range(size):
            short.add((await bench.client.turn(agent, "Good night.")).total)
        bench.floors.model.ask(await bench.model.request_of(bench.client, agent, reply))
        model.values += await bench.floors.model.apart(size)
    pieces = _LONG_REPLY_CHARS // _PIECE_CHARS
    own = turns.median - model.median
    bench.report.add(
        Row(f"turn, reply in {pieces} pieces, own", own, "ms", p95=turns.p95 - model.median,
            samples=len(turns), note=f"model {model.median:.1f}"),
        Row("each piece of a reply", (turns.median - short.median) / pieces * 1000, "us",
            floor=model.median / pieces * 1000, floor_name="model", samples=len(turns),
            note="all sent at once by the model; pieces that wait are joined"),
        _cpu_row(f"turn, reply in {pieces} pieces, CPU", cpu, len(turns)),
    )  # fmt: skip


async def tool_turns(bench: Bench) -> None:
    """Measures turns with one tool call: two steps with a model request each."""
    kinds = (
        ("memory_insert", "remember fact {}."),
        ("archival_memory_insert", "archive The {}. note is about a boat in Lisbon."),
        ("archival_memory_search", "search boats, question {}"),
        ("conversation_search", "recall note {}"),
    )
    for tool, text in kinds:
        turns, model = Samples(), Samples()
        agent = ""
        for number in range(max(bench.effort.turns // 4, 10)):
            if number % _TURNS_PER_AGENT == 0:
                agent = await _ready_agent(bench)
            turn = await bench.client.turn(agent, text.format(number))
            if turn.tools != 1:
                raise RuntimeError(f"{turn.tools} tools were run, and not one {tool}")
            turns.add(turn.total)
        bench.floors.model.ask(await bench.model.request_of(bench.client, agent))
        model.values += await bench.floors.model.apart(_TURNS_PER_AGENT)
        await bench.floors.measure(_CHUNK)
        own = 2 * model.median
        bench.report.add(
            Row(f"turn with {tool}, own", turns.median - own, "ms",
                p95=turns.p95 - own, floor=_beneath(bench), floor_name="commit + hop",
                samples=len(turns), note=f"model 2 x {model.median:.1f}"),
        )  # fmt: skip


async def _ready_agent(bench: Bench) -> str:
    agent = await bench.client.new_agent()
    await bench.client.turn(agent, "Hello.")
    return agent


async def _take_turns(
    bench: Bench, agent: str, count: int, turns: Samples, cpu: dict[str, float]
) -> None:
    before = bench.system.usage().cpu_ms
    for _ in range(count):
        turn = await bench.client.turn(agent, f"Good evening, this is message {len(turns)}.")
        turns.add(turn.total)
    _count_cpu(cpu, before, bench.system.usage().cpu_ms)


def _per_turn(cpu: dict[str, float], turns: Samples) -> float:
    return sum(cpu.values()) / len(turns)


def _beneath(bench: Bench) -> float:
    return bench.floors.commit.samples.median + bench.floors.hop.samples.median


def _chunks(count: int) -> Iterator[int]:
    for start in range(0, count, _CHUNK):
        yield min(_CHUNK, count - start)


def _count_cpu(total: dict[str, float], before: dict[str, float], after: dict[str, float]) -> None:
    for kind, cpu_ms in after.items():
        # PostgreSQL's workers are short-lived, and their processor time ends with them.
        total[kind] = total.get(kind, 0.0) + max(cpu_ms - before.get(kind, 0.0), 0.0)


def _cpu_row(name: str, cpu: dict[str, float], turns: int) -> Row:
    per_turn = {kind: cpu_ms / turns for kind, cpu_ms in cpu.items()}
    parts = sorted(per_turn.items(), key=lambda item: -item[1])
    note = ", ".join(f"{kind} {cpu_ms:.1f}" for kind, cpu_ms in parts if cpu_ms >= 0.05)
    return Row(name, sum(per_turn.values()), "ms CPU", samples=turns, note=note)
