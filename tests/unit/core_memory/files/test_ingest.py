"""Intervals at which the file worker checks for work of other replicas."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from loop_time import put_forward
from polling import settle
from strata.core_memory.files.ingest import Ingest, IngestOptions
from strata.core_memory.files.store.queue import FileWork
from strata.shared.foreground_work import ForegroundWork

POLL_S = 60.0


class CountedWork:
    """A queue without work that counts the checks."""

    def __init__(self) -> None:
        self.looks: Counter[str] = Counter()
        self.waiting: frozenset[FileWork] = frozenset()
        self.files_wait = False
        self.has_file = False

    async def find_work(self) -> frozenset[FileWork]:
        self.looks["all"] += 1
        return self.waiting

    async def read_next(self) -> bool:
        self.looks["read"] += 1
        return False

    async def send_next(self) -> bool:
        self.looks["send"] += 1
        has_file, self.has_file = self.has_file, False
        return has_file

    async def follow(self) -> bool:
        self.looks["follow"] += 1
        return False

    async def drop_next(self) -> bool:
        self.looks["drop"] += 1
        return False

    async def delete_next_content(self, _: float) -> bool:
        self.looks["delete"] += 1
        return False

    async def delete_abandoned_uploads(self, _: float) -> int:
        return 0

    async def after(self, *pauses: float) -> Counter[str]:
        """Returns the number of checks of each kind during these pauses."""
        before = self.looks.copy()
        for seconds in pauses:
            put_forward(seconds)
            await settle()
        return self.looks - before


@pytest_asyncio.fixture
async def work() -> CountedWork:
    return CountedWork()


@pytest_asyncio.fixture
async def ingest(work: CountedWork) -> AsyncIterator[Ingest]:
    parts: Any = work
    ingest = Ingest(parts, parts, parts, IngestOptions(readers=1, poll=POLL_S))
    running = asyncio.create_task(ingest.run())
    await asyncio.sleep(0)
    yield ingest
    running.cancel()


async def test_without_files_the_worker_checks_less_often(
    ingest: Ingest, work: CountedWork
) -> None:
    await work.after(0)
    kinds = ("read", "send", "follow", "drop", "delete")
    assert work.looks == Counter(dict.fromkeys(kinds, 1))
    work.looks.clear()
    assert await work.after(*[POLL_S + 1] * 7) == Counter(all=3), "after 1, 2 and 4 pauses"
    ingest.wake()
    assert await work.after(0) == Counter(read=1, send=1, drop=1)


async def test_work_left_by_another_replica_is_found_at_one_check(
    ingest: Ingest, work: CountedWork
) -> None:
    await work.after(0)
    work.waiting = frozenset({FileWork.READ, FileWork.DROP, FileWork.DELETE})
    assert await work.after(POLL_S + 1) == Counter(all=1, read=1, drop=1, delete=1)


async def test_after_work_the_next_check_is_soon(ingest: Ingest, work: CountedWork) -> None:
    await work.after(*[8 * POLL_S + 1] * 4)
    work.has_file = True
    ingest.wake()
    assert (await work.after(0))["all"] == 0
    assert (await work.after(POLL_S + 1))["all"] == 1


async def test_indexing_progress_is_checked_at_every_poll(
    ingest: Ingest, work: CountedWork
) -> None:
    await work.after(0, *[8 * POLL_S + 1] * 4)
    work.has_file = work.files_wait = True
    ingest.wake()
    assert (await work.after(0))["follow"] == 1
    assert (await work.after(*[POLL_S + 1] * 5))["follow"] == 5


async def test_files_wait_for_turns_and_are_read_beside_turns_that_never_end(
    work: CountedWork,
) -> None:
    now = 0.0
    foreground = ForegroundWork(pause_s=0.0, longest_wait_s=0.25, now=lambda: now)
    parts: Any = work
    options = IngestOptions(readers=1, poll=POLL_S)
    ingest = Ingest(parts, parts, parts, options, foreground)
    steps = Counter(read=1, send=1, drop=1)
    with foreground:
        running = asyncio.create_task(ingest.run())
        try:
            assert await work.after(0) == Counter(), "it waits"
            now += 0.25
            assert await work.after(0) == Counter(follow=1, delete=1) + steps
            ingest.wake()
            assert await work.after(0) == Counter(), "it waits again"
            now += 0.25
            assert await work.after(0) == steps
        finally:
            running.cancel()
