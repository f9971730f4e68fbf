"""Watches how long an event loop is held by one piece of code.

What counts is the processor time that the loop's thread spends in one callback, not the time on
the wall: a test machine that does other things as well holds up everything. Processor time grows
on a busy machine, too (caches and cores are shared), so that a piece of known work is done now and
then, and everything is told in what it takes. Collections of garbage count like all else; what
was there before is set aside, as a process does with what its start has made.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from strata.shared.gc_freeze import freeze_long_lived

_REFERENCE_MS = 1.4
"""What `_reference` takes on the machine of docs/benchmarks when it does nothing else."""
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Held:
    """A callback and the processor time that it took, in milliseconds."""

    milliseconds: float
    what: str
    collecting: float = 0.0
    """How many of them went into collections of garbage."""


@dataclass
class LoopWatch:
    """The callbacks that held the loop longest, and the pace of the machine meanwhile."""

    held: list[Held] = field(default_factory=list)
    references: list[float] = field(default_factory=list)
    callbacks: int = 0
    collecting: float = 0.0
    """Processor time of the current callback that went into collections, in milliseconds."""

    @property
    def slowdown(self) -> float:
        """How much slower the machine was than when it does nothing else; at least 1."""
        if not self.references:
            return 1.0
        return max(1.0, statistics.median(self.references) / _REFERENCE_MS)

    def longer_than(self, milliseconds: float) -> list[Held]:
        """Returns what took longer, as on a machine that does nothing else."""
        return [hold for hold in self.held if hold.milliseconds / self.slowdown > milliseconds]

    def note(self, milliseconds: float, what: str) -> None:
        """Counts a callback."""
        self.callbacks += 1
        if milliseconds > 2.0:
            self.held.append(Held(milliseconds, what, self.collecting))

    async def _keep_pace(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S)
            self.references.append(_reference())


@asynccontextmanager
async def counted_turns(pause: float = 0.001) -> AsyncIterator[Callable[[], int]]:
    """Yields a function that returns how often another task has run since, with this pause."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(pause)

    turning = asyncio.create_task(turn())
    try:
        yield lambda: turns
    finally:
        turning.cancel()


@asynccontextmanager
async def watch_loop() -> AsyncIterator[LoopWatch]:
    """Watches the running loop, which must be asyncio's own."""
    watch = LoopWatch()
    original = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        what = _described(handle)
        watch.collecting = 0.0
        started = time.thread_time()
        original(handle)
        watch.note((time.thread_time() - started) * 1000, what)

    began = 0.0

    def collects(phase: str, _: object) -> None:
        nonlocal began
        now = time.thread_time()
        if phase == "start":
            began = now
        else:
            watch.collecting += (now - began) * 1000

    # What a test session has piled up is not to be gone through in the middle of a callback, nor
    # to decide how much must pile up anew before a collection (see `freeze_long_lived`).
    gc.collect()
    freeze_long_lived()
    gc.callbacks.append(collects)
    asyncio.Handle._run = timed  # type: ignore[method-assign,assignment]
    pace = asyncio.create_task(watch._keep_pace())
    try:
        yield watch
        # The callback that we are in is counted when it ends.
        await asyncio.sleep(0)
    finally:
        pace.cancel()
        gc.callbacks.remove(collects)
        asyncio.Handle._run = original  # type: ignore[method-assign]
        gc.unfreeze()


async def assert_never_held(scenario: Callable[[], Awaitable[None]], milliseconds: float) -> None:
    """Runs the scenario, and fails if something in it holds the loop longer than that.

    What seems to is confirmed by a second run: work that is too long takes as long again, at the
    same place; what another process on the machine slowed down does not.
    """
    slowdown, held = await _run_and_watch(scenario, milliseconds)
    if held:
        _, held_again = await _run_and_watch(scenario, milliseconds)
        places = {hold.what for hold in held_again}
        held = [hold for hold in held if hold.what in places]
    assert not held, (slowdown, held)


async def _run_and_watch(
    scenario: Callable[[], Awaitable[None]], milliseconds: float
) -> tuple[float, list[Held]]:
    async with watch_loop() as watch:
        await scenario()
    assert watch.callbacks > 100
    return watch.slowdown, watch.longer_than(milliseconds)


def _reference() -> float:
    started = time.thread_time()
    total = 0
    for number in range(20_000):
        total += number * number % 7
    return (time.thread_time() - started) * 1000


def _described(handle: asyncio.Handle) -> str:
    """Names the coroutine that continues, and what it has waited in; equal in every run."""
    callback: Any = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if not isinstance(owner, asyncio.Task):
        return _name_of(callback)
    names: list[str] = []
    inner: Any = owner.get_coro()
    while inner is not None and len(names) < 40:
        names.append(_name_of(inner))
        inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)
    return " > ".join(names)


def _name_of(value: object) -> str:
    # Never the `repr`, which has an address and would make each run name another place.
    return str(getattr(value, "__qualname__", type(value).__qualname__))
