"""The request context and the clocks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from strata.protocol.errors import PermissionDeniedError, Reason, UnauthenticatedError
from strata.shared.clock import ManualClock, SystemClock
from strata.shared.context import (
    Caller,
    RequestContext,
    current,
    current_project,
    require_caller,
    require_scope,
    use,
)

ALICE = Caller("org", "project-a", "key-a", frozenset({"agents:read"}))


def test_outside_of_a_call_there_is_no_caller() -> None:
    assert current() == RequestContext()
    with pytest.raises(UnauthenticatedError) as raised:
        current_project()
    assert raised.value.reason is Reason.CREDENTIALS_MISSING


def test_contexts_can_be_nested_and_are_restored() -> None:
    with use(RequestContext(caller=ALICE, request_id="outer")):
        with use(current().with_deadline(5.0)) as inner:
            assert current() is inner
            assert current_project() == "project-a"
            assert inner.request_id == "outer"
        assert current().deadline is None
        assert require_caller() is ALICE
    assert current().caller is None


async def test_a_task_keeps_the_context_in_which_it_was_started() -> None:
    async def project() -> str:
        await asyncio.sleep(0.01)
        return current_project()

    tasks = []
    for number in range(10):
        with use(RequestContext(caller=Caller("o", f"project-{number}", "k"))):
            tasks.append(asyncio.create_task(project()))
    assert await asyncio.gather(*tasks) == [f"project-{number}" for number in range(10)]


async def test_the_remaining_time_counts_down_to_the_deadline() -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 10
    before = loop.time()
    remaining = RequestContext(deadline=deadline).remaining()
    after = loop.time()
    assert remaining is not None
    assert deadline - after <= remaining <= deadline - before
    past = RequestContext(deadline=loop.time() - 1).remaining()
    assert past is not None
    assert past < 0
    assert RequestContext().remaining() is None


def test_a_missing_scope_is_named() -> None:
    with use(RequestContext(caller=ALICE)):
        assert require_scope("agents:read") is ALICE
        with pytest.raises(PermissionDeniedError) as raised:
            require_scope("agents:write")
    assert raised.value.reason is Reason.SCOPE_MISSING
    assert raised.value.metadata == {"scope": "agents:write"}


def test_a_manual_clock_moves_only_by_a_call() -> None:
    clock = ManualClock(datetime(2026, 5, 1, tzinfo=UTC))
    start = clock.monotonic()
    clock.advance(90)
    assert clock.now() == datetime(2026, 5, 1, 0, 1, 30, tzinfo=UTC)
    clock.step(-3600)
    assert clock.now() == datetime(2026, 4, 30, 23, 1, 30, tzinfo=UTC)
    assert clock.monotonic() - start == 90
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(datetime(2026, 5, 1))  # noqa: DTZ001


def test_the_system_clock_returns_aware_times_in_utc() -> None:
    now = SystemClock().now()
    assert now.utcoffset() == timedelta(0)
