"""The queue between a turn and its stream."""

from __future__ import annotations

import asyncio

from strata.agent_loop.domain.run.events import TextPiece
from strata.agent_loop.servicers.turns import EventQueue

PIECE = TextPiece("message-1", "x")


async def test_turn_waits_for_a_slow_reader_and_every_event_arrives() -> None:
    queue = EventQueue(ahead=2)

    async def turn() -> None:
        for _ in range(10):
            await queue.emit(PIECE)

    task = asyncio.create_task(turn())
    task.add_done_callback(lambda _: queue.end())
    await asyncio.sleep(0)
    assert not task.done()
    read = 0
    while await queue.next(task) is not None:
        read += 1
    assert read == 10


async def test_turn_without_a_reader_does_not_wait() -> None:
    queue = EventQueue(ahead=1)

    async def turn() -> None:
        for _ in range(10):
            await queue.emit(PIECE)

    task = asyncio.create_task(turn())
    await asyncio.sleep(0)
    queue.abandon()
    await asyncio.wait_for(task, 30)


async def test_waiting_reader_gets_the_end() -> None:
    queue = EventQueue()
    task = asyncio.create_task(asyncio.sleep(0.01))
    task.add_done_callback(lambda _: queue.end())
    assert await asyncio.wait_for(queue.next(task), 30) is None
