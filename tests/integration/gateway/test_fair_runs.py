"""Runs of one project leave slots of a gateway to other projects."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from integration.gateway.projects import project, project_key
from integration.gateway.scripted_runs import finished, started, step, stored
from integration.gateway.scripted_services import ScriptedServices
from polling import eventually
from run_events import collect, kinds
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb


class Held:
    """Turns that run until the test ends one of their project.

    Attributes:
        running: Active turns by project.
        order: The projects, in the order in which their turns started.
    """

    def __init__(self, services: ScriptedServices) -> None:
        self.running: Counter[str] = Counter()
        self.order: list[str] = []
        self._services = services
        self._end: dict[str, asyncio.Semaphore] = {}
        services.turns.script = self.turn

    async def turn(self, _: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        project_id = self._services.turns.callers[-1].project_id
        self.running[project_id] += 1
        self.order.append(project_id)
        try:
            yield started()
            yield step()
            await self._end.setdefault(project_id, asyncio.Semaphore(0)).acquire()
            yield stored("done")
            yield finished()
        finally:
            self.running[project_id] -= 1

    def end(self, project_id: str, count: int = 1) -> None:
        semaphore = self._end.setdefault(project_id, asyncio.Semaphore(0))
        for _ in range(count):
            semaphore.release()


async def test_a_project_with_many_runs_leaves_slots_to_another(services: ScriptedServices) -> None:
    held = Held(services)
    # The poll interval is long: a free slot starts the next run without a poll.
    gateway = await services.gateway(runs_at_once=4, poll_s=60)
    made = [await project(gateway, name) for name in ("noisy", "quiet")]
    noisy, quiet = [await project_key(gateway, project.id, "run", "read") for project in made]
    runs = [await noisy.start_run(services.new_agent()) for _ in range(8)]
    await eventually(lambda: held.running[made[0].id] == 3)
    states = Counter([(await noisy.run(run.id)).state for run in runs])
    assert states == {pb.RUN_STATE_RUNNING: 3, pb.RUN_STATE_QUEUED: 5}
    run = await quiet.start_run(services.new_agent())
    await eventually(lambda: held.running[made[1].id] == 1)
    held.end(made[1].id)
    held.end(made[0].id, 8)
    for noisy_run in runs:
        assert kinds(await collect(noisy.stream(noisy_run.id)))[-1] == "run_finished"
    assert kinds(await collect(quiet.stream(run.id)))[-1] == "run_finished"


async def test_a_long_conversation_yields_its_slot_to_a_waiting_project(
    services: ScriptedServices,
) -> None:
    held = Held(services)
    gateway = await services.gateway(runs_at_once=1, poll_s=60)
    made = [await project(gateway, name) for name in ("noisy", "quiet")]
    noisy, quiet = [await project_key(gateway, project.id, "run", "read") for project in made]
    agent = services.new_agent()
    for _ in range(4):
        await noisy.start_run(agent)
    await quiet.start_run(services.new_agent())
    await eventually(lambda: len(held.order) == 1)
    held.end(made[1].id)
    held.end(made[0].id, 4)
    await eventually(lambda: len(held.order) == 5)
    assert made[1].id in held.order[1:3]
