"""Background turns yield the processor to foreground turns."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest

from strata.agent_loop.domain.run.runs import TranscriptRange
from strata.agent_loop.loop.control import TurnControl
from strata.agent_loop.loop.priority import TurnWork
from strata.agent_loop.loop.turn import Turn
from strata.shared.context import Caller, RequestContext, use
from strata.shared.fair_slots import slots_of_short_work
from strata.shared.messages import MessageRole
from unit.agent_loop.loop.in_memory_ports import Sink
from unit.agent_loop.loop.loop_harness import LoopHarness


class Time:
    """A clock that advances only while all tasks of its thread sleep.

    Servers of other tests may run in other threads; their pauses are real ones.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self._yield = asyncio.sleep
        self._thread = threading.get_ident()
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def pass_on(self) -> None:
        """Lets other tasks run, without advancing the clock."""
        await self._yield(0)

    def __call__(self) -> float:
        return self.now

    async def _sleep(self, seconds: float) -> None:
        if threading.get_ident() != self._thread:
            await self._yield(seconds)
            return
        until = self.now + seconds
        await self._yield(0)
        self.now = max(self.now, until)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def work_of(time: Time) -> TurnWork:
    return TurnWork(slots_of_short_work(64, "parts"), time)


async def bursts(work: TurnWork, time: Time, count: int) -> list[float]:
    """Returns the start times of a number of bursts of a memory agent, in seconds from now."""
    start, begun = time.now, []
    background = work.of(background=True)
    for _ in range(count):
        async with background.slot():
            begun.append(round(time.now - start, 2))
    return begun


async def test_memory_agents_work_without_pauses_while_no_run_is_active(time: Time) -> None:
    assert await bursts(work_of(time), time, 5) == [0.0] * 5


async def test_background_work_pauses_for_a_time_after_a_foreground_turn(time: Time) -> None:
    work = work_of(time)
    async with work.of(background=False).slot():
        pass
    times = await bursts(work, time, 4)
    assert times[0] >= 0.05
    assert [round(b - a, 2) for a, b in pairwise(times)] == [0.1] * 3
    time.now += 10
    assert await bursts(work, time, 3) == [0.0] * 3


async def test_background_work_waits_at_most_one_second_for_foreground_work(
    time: Time,
) -> None:
    work = work_of(time)
    foreground = work.of(background=False)
    async with foreground.slot():
        # This turn never ends: memory agents are slow, but not starved.
        assert await bursts(work, time, 3) == [1.0, 2.0, 3.0]


async def test_foreground_burst_never_waits_for_memory_agents(time: Time) -> None:
    work = work_of(time)
    before = time.now
    async with work.of(background=True).slot(), work.of(background=False).slot():
        assert time.now == before


async def test_running_foreground_turn_counts_between_its_bursts(time: Time) -> None:
    work = work_of(time)
    await work.of(background=False).give_way()
    assert (await bursts(work, time, 1))[0] >= 0.05


async def test_a_memory_agent_of_a_quiet_project_does_not_wait_for_all_of_a_busy_one(
    time: Time,
) -> None:
    work, ended = work_of(time), list[str]()

    async def burst(project: str) -> None:
        with use(RequestContext(caller=Caller("organization", project, "key"))):
            await work.of(background=True).give_way()
        ended.append(project)

    async with work.of(background=False).slot():
        busy = [asyncio.create_task(burst("busy")) for _ in range(20)]
        await time.pass_on()
        await burst("quiet")
        assert ended.count("busy") <= 2
        await asyncio.gather(*busy)


async def test_cancelled_waiting_burst_does_not_stop_the_others(time: Time) -> None:
    work = work_of(time)
    background = work.of(background=True)
    async with work.of(background=False).slot():
        waiting = [asyncio.create_task(background.give_way()) for _ in range(3)]
        await time.pass_on()
        for task in waiting[:2]:
            task.cancel()
        await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [True, True, False]


async def test_the_step_of_a_cancelled_background_turn_is_stored_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata.agent_loop.loop.priority._LONGEST_S", 3600.0)
    harness, control = LoopHarness(), TurnControl()
    harness.model.replies = [harness.calls("blocks")]
    read = TranscriptRange("agent-1", "conversation-1", -1, 9)
    turn = Turn(harness.ports, harness.request("", transcript=read), Sink(), control)
    task = asyncio.create_task(turn.run())
    await harness.tools.running.wait()
    async with harness.ports.work.of(background=False).slot():
        control.cancelled = True
        task.cancel()
        await task
    assert [message.role for message in harness.recall.messages[-2:]] == [
        MessageRole.ASSISTANT,
        MessageRole.TOOL,
    ]
