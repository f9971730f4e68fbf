"""Turns of several projects in one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.ports import BegunTurn, CommittedStep, StepCommit
from strata.agent_loop.domain.run.journal import JournalKey
from strata.agent_loop.loop.priority import TurnWork
from strata.shared import fair_slots
from strata.shared.context import Caller, RequestContext, use
from strata.shared.fair_slots import slots_of_short_work
from unit.agent_loop.loop.in_memory_ports import Recall
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply


class SlowRecall:
    """A recall that counts concurrent calls of projects and lets other tasks run."""

    def __init__(self, recall: Recall, project: str, running: Counter[str], most: Counter[str]):
        self._recall = recall
        self._project = project
        self._running = running
        self._most = most

    def __getattr__(self, name: str) -> object:
        return getattr(self._recall, name)

    async def begin_turn(
        self, key: JournalKey, inputs: Sequence[Message], *, clear: bool = False
    ) -> BegunTurn:
        await self._work()
        return await self._recall.begin_turn(key, inputs, clear=clear)

    async def commit_step(self, commit: StepCommit) -> CommittedStep:
        await self._work()
        return await self._recall.commit_step(commit)

    async def _work(self) -> None:
        self._running[self._project] += 1
        self._most[self._project] = max(self._most[self._project], self._running[self._project])
        for _ in range(20):
            await asyncio.sleep(0)
        self._running[self._project] -= 1


class Turns:
    """Turns of projects that share a process, with counts of concurrent ones."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self.ended: list[str] = []
        self._running: Counter[str] = Counter()
        self._work = slots_of_short_work(64, "parts of turns")

    async def take(self, project: str) -> None:
        harness = LoopHarness()
        recall = SlowRecall(harness.recall, project, self._running, self.most)
        harness.ports = replace(harness.ports, recall=recall, work=TurnWork(self._work))  # type: ignore[arg-type]
        with use(RequestContext(caller=Caller("organization", project, "key"))):
            await harness.run(None, reply("Hello."))
        self.ended.append(project)

    async def begin_many(self, project: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.take(project)) for _ in range(30)]
        await asyncio.sleep(0)
        return tasks


async def test_a_busy_project_leaves_slots_to_a_quiet_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine these turns take longer than the times after which slots are given away.
    monkeypatch.setattr(fair_slots, "_SHORT_S", 60.0)
    monkeypatch.setattr(fair_slots, "_SHORT_GIVE_WAY_S", 60.0)
    turns = Turns()
    await turns.take("quiet")
    noisy = await turns.begin_many("noisy")
    await asyncio.create_task(turns.take("quiet"))
    assert turns.ended.count("noisy") < 10, "the quiet project had to wait for most of the others"
    await asyncio.gather(*noisy)
    assert turns.most["noisy"] <= 2


async def test_a_single_active_project_may_use_many_slots() -> None:
    turns = Turns()
    await asyncio.gather(*await turns.begin_many("noisy"))
    assert turns.most["noisy"] > 10
