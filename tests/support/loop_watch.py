"""Measures how long a callback blocks an event loop.

It measures the processor time that the loop's thread spends in one callback, not the elapsed time,
because other programs on the test machine delay everything. Processor time grows on a busy machine,
too (caches and cores are shared), so a reference computation is run from time to time, and all
times are relative to it. Garbage collections count as well; objects that existed before are frozen,
as a process does with the objects of its start.
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
"""Processor time of `_reference` on the idle machine of docs/benchmarks, in milliseconds."""
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Held:
    """A callback and its processor time in milliseconds."""

    milliseconds: float
    what: str
    collecting: float = 0.0
    """The milliseconds of garbage collections in this time."""


@dataclass
class LoopWatch:
    """The callbacks that blocked the loop longest, and the speed of the machine at that time."""

    held: list[Held] = field(default_factory=list)
    references: list[float] = field(default_factory=list)
    collecting: float = 0.0
    """Garbage collections in the current callback, in milliseconds of processor time."""

    @property
    def slowdown(self) -> float:
        """The slowdown of the machine relative to an idle one; at least 1."""
        if not self.references:
            return 1.0
        return max(1.0, statistics.median(self.references) / _REFERENCE_MS)

    def longer_than(self, milliseconds: float) -> list[Held]:
        """Returns callbacks over a limit, with times scaled to an idle machine."""
        return [hold for hold in self.held if hold.milliseconds / self.slowdown > milliseconds]

    def note(self, milliseconds: float, what: str) -> None:
        """Records a callback."""
        if milliseconds > 2.0:
            self.held.append(Held(milliseconds, what, self.collecting))

    async def _keep_pace(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S)
            self.references.append(_reference())


@asynccontextmanager
async def counted_turns(pause: float = 0.001) -> AsyncIterator[Callable[[], int]]:
    """Yields a function that returns how often a task ran that sleeps for `pause` seconds."""
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
    """Watches the running loop, which must be asyncio's own: others do not call `Handle._run`."""
    assert isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
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

    # The objects that a test session has accumulated must not be traversed in the middle of a
    # callback, nor determine how many new objects cause a collection (see `freeze_long_lived`).
    gc.collect()
    freeze_long_lived()
    gc.callbacks.append(collects)
    asyncio.Handle._run = timed  # type: ignore[method-assign,assignment]
    pace = asyncio.create_task(watch._keep_pace())
    try:
        yield watch
        # The current callback is counted when it ends.
        await asyncio.sleep(0)
    finally:
        pace.cancel()
        gc.callbacks.remove(collects)
        asyncio.Handle._run = original  # type: ignore[method-assign]
        gc.unfreeze()


async def assert_never_held(scenario: Callable[[], Awaitable[None]], milliseconds: float) -> None:
    """Runs the scenario, and fails if a callback blocks the loop longer than the limit.

    A long callback is confirmed by a second run: work that is too long takes as long again, at the
    same place; work that another process slowed down does not.
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
    return watch.slowdown, watch.longer_than(milliseconds)


def _reference() -> float:
    started = time.thread_time()
    total = 0
    for number in range(20_000):
        total += number * number % 7
    return (time.thread_time() - started) * 1000


def _described(handle: asyncio.Handle) -> str:
    """Returns the names of the coroutine and of the place where it waited; equal in every run."""
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
    # Not the `repr`: it contains an address, so it would differ between two runs.
    return str(getattr(value, "__qualname__", type(value).__qualname__))
