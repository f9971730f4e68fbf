"""How much more work the processors can do, so that fairness costs nothing while they are idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from strata.shared.processors import cpu_quota, read_system_file

# The kernel counts in steps of 0.01 s.
_INTERVAL_S = 0.25
# Work that waits for its turn on a processor takes twice as long at two thirds of the capacity.
_MUCH = 0.5
_LITTLE = 0.25
# More work of one project does not fill an event loop better.
_HIGHEST_LEVEL = 16
_MACHINE = Path("/proc/stat")
_THREAD = Path("/proc/thread-self/schedstat")
_CPU_USE = Path("/sys/fs/cgroup/cpu.stat")


@dataclass(frozen=True, slots=True)
class MachineTimes:
    """Times of the processors since the machine started; only differences have a meaning.

    Attributes:
        idle: Time without work of any priority.
        all: All time.
    """

    idle: float
    all: float


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Use of a quota of processor time.

    Attributes:
        used_s: Processor seconds used so far.
        allowed: Processor seconds allowed in a second.
    """

    used_s: float
    allowed: float


class Readings(Protocol):
    """What is read about the processors."""

    def machine(self) -> MachineTimes | None:
        """Returns the times of the machine; None if they are not known."""
        ...

    def loop_s(self) -> float:
        """Returns how long the thread of the event loop used or wanted a processor, in seconds."""
        ...

    def of_quota(self) -> QuotaUse | None:
        """Returns the use of the quota of this process and its group; None without a quota."""
        ...


class SystemReadings:
    """Reads the files of the Linux kernel; elsewhere nothing is known of the machine."""

    def machine(self) -> MachineTimes | None:
        """See `Readings.machine`."""
        return parse_machine_times(read_system_file(_MACHINE))

    def loop_s(self) -> float:
        """See `Readings.loop_s`; called in the event loop."""
        return time.thread_time() + parse_waited_s(read_system_file(_THREAD))

    def of_quota(self) -> QuotaUse | None:
        """See `Readings.of_quota`."""
        allowed = cpu_quota()
        if allowed is None:
            return None
        return QuotaUse(parse_used_s(read_system_file(_CPU_USE)), allowed)


class SpareCapacity:
    """Decides how much work one project may have under way while other projects are active.

    The level doubles as long as half of the processors have nothing to do, and half of the time of
    the event loop is free, and it is halved while less than a quarter is. It is looked at when a
    decision needs it, at most four times a second.

    Args:
        readings: What is read about the processors.
        now: A monotonic clock, in seconds.
    """

    def __init__(
        self, readings: Readings | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._readings = readings or SystemReadings()
        self._now = now
        self._level = 1
        self._looked = float("-inf")
        self._last_reading: _Reading | None = None

    def level(self) -> int:
        """Returns the level, from 1 to 16."""
        if self._now() - self._looked >= _INTERVAL_S:
            spare = self._spare()
            if spare >= _MUCH:
                self._level = min(2 * self._level, _HIGHEST_LEVEL)
            elif spare < _LITTLE:
                self._level = max(self._level // 2, 1)
        return self._level

    def _spare(self) -> float:
        """Looks; returns the share that was spare since the last look, 0 if it is not known."""
        last, self._looked = self._last_reading, self._now()
        reading = self._last_reading = _Reading(
            self._looked,
            self._readings.loop_s(),
            self._readings.machine(),
            self._readings.of_quota(),
        )
        return 0.0 if last is None else reading.spare_since(last)


@dataclass(frozen=True, slots=True)
class _Reading:
    """All readings of one moment."""

    when: float
    loop_s: float
    machine: MachineTimes | None
    quota: QuotaUse | None

    def spare_since(self, last: _Reading) -> float:
        """Returns the smallest known share; 0 if the machine's share is unknown."""
        seconds = self.when - last.when
        if self.machine is None or last.machine is None or self.machine.all == last.machine.all:
            return 0.0
        of_machine = (self.machine.idle - last.machine.idle) / (self.machine.all - last.machine.all)
        of_loop = 1 - (self.loop_s - last.loop_s) / seconds
        if self.quota is None or last.quota is None:
            return min(of_machine, of_loop)
        used = (self.quota.used_s - last.quota.used_s) / seconds
        return min(of_machine, of_loop, 1 - used / self.quota.allowed)


def parse_machine_times(text: str) -> MachineTimes | None:
    """Reads `/proc/stat`; None if it has no times."""
    name, *numbers = text.partition("\n")[0].split()[:9] or [""]
    if name != "cpu" or len(numbers) < 5:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; time of guests is in user and nice.
    times = [float(number) for number in numbers]
    return MachineTimes(times[3] + times[4], sum(times))


def parse_used_s(text: str) -> float:
    """Reads a cgroup's `cpu.stat`: processor seconds used; 0 if it does not say."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return int(value) / 1e6
    return 0.0


def parse_waited_s(text: str) -> float:
    """Reads a `schedstat`: seconds that a thread waited for a processor; 0 if it does not say."""
    numbers = text.split()
    return int(numbers[1]) / 1e9 if len(numbers) == 3 else 0.0
