"""Background tasks of a service."""

from __future__ import annotations

import asyncio

import pytest

from strata.shared import service as module
from strata.shared.service import BackgroundTasks, Service


async def test_a_failed_task_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    runs = 0
    recovered = asyncio.Event()

    async def flaky() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise ConnectionError("engine is away")
        recovered.set()
        await asyncio.sleep(60)

    async with BackgroundTasks(Service("recall", [], background=[flaky])):
        await asyncio.wait_for(recovered.wait(), 30)
    assert runs == 3


async def test_tasks_are_cancelled_and_awaited_at_the_end() -> None:
    started = asyncio.Event()
    cleaned = False

    async def endless() -> None:
        nonlocal cleaned
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned = True

    async with BackgroundTasks(Service("recall", [], background=[endless])):
        await started.wait()
    assert cleaned


async def test_a_group_of_tasks_that_fails_while_it_is_cancelled_ends() -> None:
    runs = 0
    started = asyncio.Event()

    async def fragile() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            raise ConnectionError("engine is away")

    async def group() -> None:
        nonlocal runs
        runs += 1
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fragile())

    async with asyncio.timeout(30):
        async with BackgroundTasks(Service("recall", [], background=[group])):
            await started.wait()
    assert runs == 1


async def test_a_task_that_returns_is_not_restarted() -> None:
    runs = 0

    async def once() -> None:
        nonlocal runs
        runs += 1

    async with BackgroundTasks(Service("recall", [], background=[once])):
        await asyncio.sleep(0.05)
    assert runs == 1
