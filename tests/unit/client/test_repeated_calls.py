"""Repeated calls whose pauses end late, or at the moment at which they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from loop_time import put_forward
from polling import settle
from strata.protocol.attempts import RepeatedCall, RepeatLimits
from strata.protocol.errors import UnavailableError

PAUSE_S = 100.0


class RefusedAttempt:
    """An attempt that has ended with an error."""

    def __await__(self) -> Generator[Any, None, Any]:
        raise UnavailableError("No connection.")
        yield

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return True

    def add_done_callback(self, _: Any) -> None: ...


async def waiting_call(seconds: float) -> tuple[RepeatedCall, asyncio.Task[Any], list[None]]:
    """Returns a call that pauses after its first attempt, its reader, and its attempts.

    Args:
        seconds: The time until its deadline.
    """
    attempts: list[None] = []

    def start() -> RefusedAttempt:
        attempts.append(None)
        return RefusedAttempt()

    until = asyncio.get_running_loop().time() + seconds
    limits = RepeatLimits(max_attempts=2, first_pause_s=PAUSE_S)
    call = RepeatedCall(start, "/Echo", until, limits)

    async def read() -> Any:
        return await call

    reading = asyncio.create_task(read())
    await settle()
    assert not call.done()
    return call, reading, attempts


async def test_no_attempt_is_made_if_the_pause_ends_too_late() -> None:
    _, reading, attempts = await waiting_call(2 * PAUSE_S)
    put_forward(2 * PAUSE_S)
    with pytest.raises(UnavailableError, match="No connection"):
        await reading
    assert len(attempts) == 1


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("rounds", range(6))
async def test_a_call_cancelled_when_its_pause_ends_is_cancelled(rounds: int, late: bool) -> None:
    call, reading, attempts = await waiting_call(3 * PAUSE_S)
    put_forward((3 if late else 2) * PAUSE_S)
    # The pause ends, and then the reader is resumed, in one of these rounds.
    for _ in range(rounds):
        await asyncio.sleep(0)
    was_waiting = not call.done()
    assert call.cancel() == was_waiting
    if was_waiting:
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert call.cancelled()
        assert len(attempts) == 1
    else:
        with pytest.raises(UnavailableError):
            await reading
        assert not call.cancelled()
