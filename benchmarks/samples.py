"""Samples of durations, with their statistics."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Samples:
    """Durations of the same operation, in milliseconds."""

    values: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def add(self, milliseconds: float) -> None:
        """Adds a sample."""
        self.values.append(milliseconds)

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        """The shortest sample, which is least affected by other load."""
        return min(self.values)

    @property
    def p95(self) -> float:
        """The 95th percentile."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]

    async def time(self, count: int, work: Callable[[], Awaitable[object]]) -> None:
        """Adds the durations of `count` calls, one after the other."""
        for _ in range(count):
            started = time.perf_counter()
            await work()
            self.add((time.perf_counter() - started) * 1000)
