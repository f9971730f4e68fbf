"""How much work of one project may be under way beside others."""

from __future__ import annotations

import pytest

from strata.shared.spare_capacity import (
    MachineTimes,
    QuotaUse,
    SpareCapacity,
    SystemReadings,
    parse_machine_times,
    parse_used_s,
    parse_waited_s,
)


class Machine:
    """A machine with two processors, of which a test says how busy they are.

    Attributes:
        now: The time, in seconds.
        looks: How often it was looked at.
    """

    def __init__(self, quota: float | None = None) -> None:
        self.now = 0.0
        self.looks = 0
        self.known = True
        self._quota = quota
        self._busy_s = self._loop_s = self._used_s = 0.0

    def passes(
        self, seconds: float, *, busy: float = 0.0, loop: float = 0.0, used: float = 0.0
    ) -> None:
        """Lets time pass, with shares of the processors, the loop and one processor in use."""
        self.now += seconds
        self._busy_s += busy * 2 * seconds
        self._loop_s += loop * seconds
        self._used_s += used * seconds

    def machine(self) -> MachineTimes | None:
        self.looks += 1
        all_s = 2 * self.now
        return MachineTimes(all_s - self._busy_s, all_s) if self.known else None

    def loop_s(self) -> float:
        return self._loop_s

    def of_quota(self) -> QuotaUse | None:
        return None if self._quota is None else QuotaUse(self._used_s, self._quota)


def levels(machine: Machine, capacity: SpareCapacity, count: int, **use: float) -> list[int]:
    """Returns the levels of consecutive quarters of a second."""
    seen = []
    for _ in range(count):
        machine.passes(0.25, **use)
        seen.append(capacity.level())
    return seen


def test_the_level_follows_the_processors_and_the_event_loop() -> None:
    machine = Machine()
    capacity = SpareCapacity(machine, lambda: machine.now)
    assert capacity.level() == 1, "nothing is known yet"
    assert levels(machine, capacity, 6, busy=0.2, loop=0.2) == [2, 4, 8, 16, 16, 16]
    assert levels(machine, capacity, 2, busy=0.6, loop=0.2) == [16, 16], "neither much nor little"
    assert levels(machine, capacity, 2, busy=0.9, loop=0.2) == [8, 4]
    # One event loop that works without a pause is full, however many processors there are.
    assert levels(machine, capacity, 3, busy=0.2, loop=0.9) == [2, 1, 1]
    assert levels(machine, capacity, 1, busy=0.2, loop=0.1) == [2]


def test_a_quota_of_the_process_is_a_limit() -> None:
    machine = Machine(quota=0.5)
    capacity = SpareCapacity(machine, lambda: machine.now)
    capacity.level()
    assert levels(machine, capacity, 2, busy=0.1, used=0.1) == [2, 4]
    assert levels(machine, capacity, 2, busy=0.1, used=0.45) == [2, 1]


def test_the_level_stays_lowest_where_nothing_is_known_of_the_machine() -> None:
    machine = Machine()
    machine.known = False
    capacity = SpareCapacity(machine, lambda: machine.now)
    assert levels(machine, capacity, 3) == [1, 1, 1]


def test_it_looks_four_times_a_second_at_most() -> None:
    machine = Machine()
    capacity = SpareCapacity(machine, lambda: machine.now)
    for _ in range(1000):
        machine.passes(0.001)
        capacity.level()
    assert machine.looks <= 4


def test_the_files_of_the_kernel_are_read() -> None:
    text = "cpu  100 20 30 400 5 1 2 3 50 0\ncpu0 100 20 30 400 5 1 2 3 0 0\n"
    assert parse_machine_times(text) == MachineTimes(idle=405, all=561)
    assert parse_used_s("usage_usec 2500000\nuser_usec 1\n") == 2.5
    assert parse_waited_s("10 3000000000 7\n") == 3.0


@pytest.mark.parametrize("text", ["", "intr 1", "cpu 1 2 3", "\n"])
def test_missing_and_other_files_say_nothing(text: str) -> None:
    assert parse_machine_times(text) is None
    assert parse_used_s(text) == 0
    assert parse_waited_s(text) == 0


def test_this_machine_can_be_read() -> None:
    readings = SystemReadings()
    assert readings.loop_s() > 0
    assert SpareCapacity(readings).level() == 1
