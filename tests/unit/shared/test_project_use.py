"""Work that arrives from outside, of several kinds together, beside other projects."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from polling import settle
from strata.shared.fair_slots import FairSlots
from strata.shared.project_use import Patience, ProjectUse
from strata.shared.spare_capacity import SpareCapacity


class Capacity(SpareCapacity):
    """Spare capacity of a level that a test sets."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.value = level

    def level(self) -> int:
        return self.value


class Process:
    """The slots of a process whose clock a test sets.

    Attributes:
        now: The time, in seconds.
        capacity: What is left of the processors.
        use: What projects use of it.
        runs: Slots of runs.
        calls: Slots of calls.
        order: The kinds of work that a busy project began, in order.
    """

    def __init__(self, level: int = 1) -> None:
        self.now = 100.0
        self.capacity = Capacity(level)
        self.use = ProjectUse(lambda: self.now, self.capacity)
        self.runs, self.calls = (self._kind(name) for name in ("runs", "calls"))
        self.order: list[str] = []

    def held(self, project: str) -> int:
        """Returns how many slots a project holds of both kinds."""
        return self.runs.held(project) + self.calls.held(project)

    def begin(self, project: str, count: int) -> list[asyncio.Task[None]]:
        """Asks for a number of slots of each kind, each of which is given back at once."""
        return [
            asyncio.create_task(self._work(project, kind, name))
            for kind, name in ((self.runs, "run"), (self.calls, "call"))
            for _ in range(count)
        ]

    async def _work(self, project: str, kind: FairSlots, name: str) -> None:
        async with kind.slot(project):
            self.order.append(name)
            await asyncio.sleep(0)
            self.now += 0.025

    def _kind(self, name: str) -> FairSlots:
        return FairSlots(64, name, arriving=True, use=self.use, now=lambda: self.now)


async def hold(stack: AsyncExitStack, slots: FairSlots, project: str) -> None:
    await stack.enter_async_context(slots.slot(project))


async def test_alone_a_project_has_its_share_of_each_kind() -> None:
    process = Process()
    async with AsyncExitStack() as stack:
        for slots in (process.runs, process.calls):
            for _ in range(slots.most):
                await hold(stack, slots, "noisy")
        assert process.held("noisy") == 2 * 48


@pytest.mark.parametrize("level", [1, 2, 16])
async def test_beside_others_a_project_has_few_slots_of_all_kinds_together(level: int) -> None:
    process = Process(level)
    async with process.runs.slot("quiet"):
        pass
    async with AsyncExitStack() as stack:
        asking = [
            asyncio.create_task(hold(stack, slots, "noisy"))
            for slots in (process.runs, process.calls)
            for _ in range(20)
        ]
        await settle(5)
        assert process.held("noisy") == level
        # Another project is not held back by it.
        async with process.runs.slot("quiet"):
            assert process.held("quiet") == 1
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_the_kinds_of_work_of_a_project_take_turns() -> None:
    process = Process()
    async with process.runs.slot("quiet"):
        pass
    await asyncio.gather(*process.begin("noisy", 10))
    assert Counter(process.order) == {"run": 10, "call": 10}
    # Many runs that wait do not delay a call.
    assert "call" in process.order[:3]
    assert Counter(process.order[2:18]) == {"run": 8, "call": 8}


async def test_a_busy_project_waits_for_four_pieces_of_work_of_others_at_most() -> None:
    process = Process()
    await asyncio.gather(*process.begin("noisy", 20))
    begun = len(process.order)
    waiting = []
    async with process.runs.slot("quiet"):
        waiting = process.begin("noisy", 1)
        await settle(5)
        assert len(process.order) == begun
        # The clock stands still: others begin work without a pause.
        for taken in range(1, 5):
            async with process.calls.slot(f"other-{taken}"):
                await settle(5)
            await settle(5)
            assert (len(process.order) > begun) is (taken == 4)
    await asyncio.gather(*waiting)


async def test_a_busy_project_waits_a_quarter_of_a_second_at_most_for_one_of_any_kind() -> None:
    process = Process()
    await asyncio.gather(*process.begin("noisy", 20))
    begun = len(process.order)
    async with process.runs.slot("quiet"):
        waiting = process.begin("noisy", 2)
        await settle(5)
        process.now += 0.25
        process.use.hand_out()
        await settle(5)
        # One piece of work of one kind: each further one waits anew.
        assert len(process.order) == begun + 1
    await asyncio.gather(*waiting)


async def test_while_processors_are_idle_many_quiet_projects_hold_no_busy_one_back() -> None:
    process = Process(level=16)
    await asyncio.gather(*process.begin("noisy", 20))
    begun = len(process.order)
    async with AsyncExitStack() as stack:
        for number in range(10):
            await hold(stack, process.runs, f"quiet-{number}")
        # The clock stands still, and none of the others ends.
        await asyncio.gather(*process.begin("noisy", 20))
        assert len(process.order) == begun + 40
        process.capacity.value = 1
        waiting = process.begin("noisy", 1)
        await settle(5)
        assert len(process.order) == begun + 40
    await asyncio.gather(*waiting)


async def test_a_project_that_gave_up_waiting_waits_as_long_the_next_time() -> None:
    process = Process()
    await asyncio.gather(*process.begin("noisy", 20))
    async with process.runs.slot("quiet"):
        for _ in range(3):
            waiting = process.begin("noisy", 1)
            await settle(5)
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            process.now += 0.2
    assert process.use.patience().next_end_s() == float("inf")


async def test_a_project_whose_work_takes_many_slots_gives_way_to_none_that_works_longer() -> None:
    process = Process()
    parts = FairSlots(64, "parts", give_way_s=0.05, use=process.use, now=lambda: process.now)
    for _ in range(100):
        async with process.calls.slot("searching"):
            process.now += 0.02
        async with process.runs.slot("quiet"):
            for _ in range(10):
                async with parts.slot("quiet"):
                    process.now += 0.001
    async with process.calls.slot("searching"):
        assert process.runs.acquire_now("quiet")
    assert process.use.gives_way("searching")


async def test_a_project_that_was_idle_for_long_has_a_credit_of_a_second() -> None:
    process = Process()
    async with process.runs.slot("steady"):
        process.now += 1000
    async with process.runs.slot("idle"):
        assert process.use.gives_way("steady")
    for _ in range(20):
        async with process.runs.slot("idle"):
            process.now += 0.1
        async with process.runs.slot("steady"):
            process.now += 0.01
    async with process.runs.slot("idle"):
        assert not process.use.gives_way("steady")
    async with process.runs.slot("steady"):
        assert process.use.gives_way("idle")


async def test_entries_of_idle_projects_are_dropped() -> None:
    process = Process()
    for number in range(2000):
        async with process.runs.slot(f"project-{number}"):
            process.now += 0.01
    assert len(process.use._used) == len(process.use._counted_until) < 1200


async def test_work_that_goes_on_in_another_slot_lets_no_waiting_work_begin_in_between() -> None:
    process = Process()
    await asyncio.gather(*process.begin("noisy", 20))
    begun = len(process.order)
    call, run = process.calls.slot("quiet"), process.runs.slot("quiet")
    await call.acquire()
    waiting = process.begin("noisy", 1)
    await settle(5)
    call.replace_by(run)
    await settle(5)
    assert (process.runs.held("quiet"), process.calls.held("quiet")) == (1, 0)
    assert len(process.order) == begun
    run.release()
    await asyncio.gather(*waiting)
    # A slot that is not held replaces nothing.
    call.replace_by(run)
    assert process.held("quiet") == 0


def test_a_wait_ends_after_a_time_or_a_number_of_slots() -> None:
    now = 0.0
    patience = Patience(2.0, lambda: now, most_taken=3)
    assert patience.waits("a", taken=10)
    assert patience.waits("b", taken=12)
    assert patience.next_end_s() == 2.0
    assert not patience.waits("a", taken=13)
    assert patience.waits("b", taken=13)
    patience.stop("a")
    assert patience.waits("a", taken=13)
    now = 2.0
    assert not patience.waits("b", taken=13)
    assert patience.next_end_s() == float("inf")
