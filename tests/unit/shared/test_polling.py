"""Polling intervals for work of other processes."""

from __future__ import annotations

import asyncio

from loop_time import put_forward
from polling import settle
from strata.shared.polling import IdlePause


def test_pause_doubles_up_to_a_limit_while_there_is_no_work() -> None:
    pause = IdlePause(1.5)
    seconds = [pause.seconds]
    for _ in range(6):
        pause.note(worked=False)
        seconds.append(pause.seconds)
    assert seconds == [1.5, 1.5, 3.0, 6.0, 12.0, 12.0, 12.0]


def test_pause_is_short_after_work() -> None:
    pause = IdlePause(1.5)
    for worked in (False, False, False, True):
        pause.note(worked)
    assert pause.seconds == 1.5


async def test_wait_ends_with_the_pause() -> None:
    pause = IdlePause(60)
    for _ in range(3):
        pause.note(worked=False)
    waiting = asyncio.create_task(pause.wait(asyncio.Event()))
    await settle()
    put_forward(200)
    await settle()
    assert not waiting.done()
    put_forward(41)
    await waiting
    assert pause.seconds == 240


async def test_an_event_ends_the_wait_and_shortens_the_next_pause() -> None:
    pause, wake = IdlePause(60), asyncio.Event()
    for _ in range(3):
        pause.note(worked=False)
    waiting = asyncio.create_task(pause.wait(wake))
    await asyncio.sleep(0)
    wake.set()
    await waiting
    assert pause.seconds == 60
