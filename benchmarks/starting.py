"""Measures the time of a start, and the memory of the idle system."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.bench import Bench, Effort, Model
from benchmarks.report import Report, Row
from benchmarks.samples import Samples
from benchmarks.system import System

WARM_TARGET_S = 5.0
IDLE_TARGET_MB = 450.0
_BACKLOG_S = 600


async def measured_start(
    folder: Path, model: Model, effort: Effort, report: Report, *, split: bool
) -> System:
    """Measures cold and warm starts; returns the last system, still running."""
    cold, warm, stop = Samples(), Samples(), Samples()
    system = System(folder / "data-0", model.url, split=split)
    for number in range(effort.cold_starts):
        system = System(folder / f"data-{number}", model.url, split=split)
        cold.add(await system.start())
        stop.add(await system.stop())
    for number in range(effort.warm_starts):
        warm.add(await system.start())
        if number < effort.warm_starts - 1:
            stop.add(await system.stop())
    report.add(
        Row("start, empty data folder", cold.median, "s", samples=len(cold)),
        Row(
            "start, warm",
            warm.median,
            "s",
            target=_target(system, WARM_TARGET_S),
            samples=len(warm),
        ),
        Row("stop", stop.median, "s", samples=len(stop)),
    )
    await asyncio.sleep(effort.settle_s)
    report.add(_memory("idle memory, just started", system))
    return system


async def idle_memory(bench: Bench) -> None:
    """Measures idle memory after use: the embedding model is loaded and caches are filled."""
    # Until the messages of the suites before are embedded and indexed: the server is not idle then.
    is_idle = await bench.system.until_calm(patience_s=_BACKLOG_S)
    await asyncio.sleep(bench.effort.idle_s)
    state = "" if is_idle else ", background work had not ended"
    bench.report.add(_memory("idle memory, after use", bench.system, state))


def _memory(name: str, system: System, state: str = "") -> Row:
    usage = system.usage()
    megabytes = usage.megabytes
    parts = sorted(megabytes.items(), key=lambda item: -item[1])
    note = ", ".join(f"{kind} {value:.0f} in {usage.count[kind]}" for kind, value in parts) + state
    return Row(
        name, sum(megabytes.values()), "MB PSS", target=_target(system, IDLE_TARGET_MB), note=note
    )


def _target(system: System, target: float) -> float | None:
    # The targets apply to the single process of a local installation.
    return None if system.split else target
