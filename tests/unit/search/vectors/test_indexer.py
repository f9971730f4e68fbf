"""The indexer: its backlogs, its polling, and the wait of a rebuild."""

from __future__ import annotations

import asyncio

from loop_time import put_forward
from polling import settle
from strata.protocol.errors import UnavailableError
from strata.shared.foreground_work import ForegroundWork
from strata.shared.search.indexing.indexer import Indexer


class Work:
    """A backlog of some batches."""

    def __init__(self, left: int) -> None:
        self.left = left

    async def ensure(self) -> None: ...

    async def advance(self) -> bool:
        self.left -= 1
        return self.left >= 0


async def test_a_rebuild_waits_until_pending_texts_are_indexed() -> None:
    indexer = Indexer([Work(2)], poll=1)
    await indexer.quiet(60)
    assert await indexer.index_pending()
    waits = asyncio.create_task(indexer.quiet(60))
    await asyncio.sleep(0)
    assert await indexer.index_pending()
    await asyncio.sleep(0)
    assert not waits.done()
    assert not await indexer.index_pending()
    await waits


async def test_the_wait_of_a_rebuild_is_limited() -> None:
    indexer = Indexer([Work(1)], poll=1)
    assert await indexer.index_pending()
    await indexer.quiet(0.01)


class CountedBacklog:
    """A backlog without work that counts its checks."""

    def __init__(self) -> None:
        self.looks = 0

    async def ensure(self) -> None: ...

    async def advance(self) -> bool:
        self.looks += 1
        return False


async def test_a_commit_triggers_the_backlogs_except_polled_ones() -> None:
    often, rare = CountedBacklog(), CountedBacklog()
    indexer = Indexer([often], poll=60, polled=[rare])
    running = asyncio.create_task(indexer.run())
    try:
        await asyncio.sleep(0)
        assert (often.looks, rare.looks) == (1, 1)
        for _ in range(3):
            indexer.wake()
            await settle()
    finally:
        running.cancel()
    assert (often.looks, rare.looks) == (4, 1)


async def test_idle_backlogs_are_checked_less_often_until_a_commit() -> None:
    backlog = CountedBacklog()
    indexer = Indexer([backlog], poll=60, rarely_when_idle=True)
    running = asyncio.create_task(indexer.run())

    async def looks_after(seconds: float) -> int:
        put_forward(seconds)
        await settle()
        return backlog.looks

    try:
        assert [await looks_after(seconds) for seconds in (0, 61, 61, 60, 121, 120)] == [
            1, 2, 2, 3, 3, 4,
        ]  # fmt: skip
        indexer.wake()
        assert [await looks_after(seconds) for seconds in (0, 61)] == [5, 6]
    finally:
        running.cancel()


class UnreachableBacklog(CountedBacklog):
    """A backlog whose engine cannot be reached."""

    def __init__(self) -> None:
        super().__init__()
        self.checks = 0

    async def ensure(self) -> None:
        self.checks += 1
        raise UnavailableError("the engine cannot be reached")


async def test_every_backlog_is_checked_while_the_engine_is_away() -> None:
    first, second, polled = (UnreachableBacklog() for _ in range(3))
    indexer = Indexer([first, second], poll=60, polled=[polled])
    running = asyncio.create_task(indexer.run())
    try:
        for checks in (1, 2):
            await settle()
            assert [backlog.checks for backlog in (first, second, polled)] == [checks] * 3
            assert first.looks == 0
            put_forward(61)
    finally:
        running.cancel()


async def test_one_query_per_poll_replaces_a_check_of_each_backlog() -> None:
    backlogs, questions, waits = [CountedBacklog(), CountedBacklog()], 0, False

    async def find_work() -> bool:
        nonlocal questions
        questions += 1
        return waits

    indexer = Indexer(backlogs, poll=60, find_work=find_work)
    running = asyncio.create_task(indexer.run())

    async def looks_after(seconds: float) -> list[int]:
        put_forward(seconds)
        await settle()
        return [questions, *(backlog.looks for backlog in backlogs)]

    try:
        assert await looks_after(0) == [0, 1, 1], "at the start without a question"
        assert await looks_after(61) == [1, 1, 1]
        waits = True
        assert await looks_after(61) == [2, 2, 2]
        indexer.wake()
        assert await looks_after(0) == [2, 3, 3], "a commit needs no question"
    finally:
        running.cancel()


async def test_batches_wait_for_turns_and_continue_beside_turns_that_never_end() -> None:
    now = 0.0
    foreground = ForegroundWork(pause_s=0.0, longest_wait_s=0.25, now=lambda: now)
    work = Work(3)
    indexer = Indexer([work], poll=60, foreground=foreground)
    with foreground:
        running = asyncio.create_task(indexer.run())
        try:
            for left in (2, 1, 0):
                await settle()
                assert work.left == left + 1, "it waits"
                now += 0.25
                await settle()
                assert work.left == left
        finally:
            running.cancel()
