"""Attempts of a run: after which ends of a turn it is dispatched again, and when it fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from integration.gateway.scripted_runs import (
    NEVER,
    REPLY_EVENTS,
    delta,
    finished,
    plays,
    started,
    step,
    stored,
)
from integration.gateway.scripted_services import Gateway, ScriptedServices
from polling import eventually
from run_events import collect, kinds
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import run_event_pb2, usage_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.protocol.errors import Reason, UnavailableError
from strata.shared.auth import TokenVerifier, public_key_of
from strata.shared.clock import SystemClock
from strata.shared.context import require_caller
from strata.shared.db import sql

SET_BACK = timedelta(minutes=10)


async def test_a_run_whose_stream_breaks_is_dispatched_again_without_repeated_events(
    services: ScriptedServices,
) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        if request.attempt == 1:
            yield step(1)
            yield stored("one", "message-1")
            yield step(2)
            yield delta("half a rep", "message-2")
            raise OSError("the replica died")
        yield stored("one", "message-1")
        yield step(2)
        yield delta("whole reply", "message-2")
        yield stored("whole reply", "message-2")
        yield finished(steps=2)

    services.turns.script = turn
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent()))
    assert [request.attempt for request in services.turns.requests] == [1, 2]
    assert kinds(events) == [
        "run_started",
        "step_started",
        "message_stored",
        "step_started",
        "text_delta",
        "run_started",
        "step_restarted",
        "step_started",
        "text_delta",
        "message_stored",
        "run_finished",
    ]
    assert (await gateway.run(events[0].run_id)).attempt == 2


async def test_an_attempt_has_a_valid_token_although_the_clock_was_set_back(
    services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[str] = []

    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        tokens.append(require_caller().token)
        yield started()
        if request.attempt == 1:
            monkeypatch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) - SET_BACK)
            raise OSError("the replica died")
        yield finished()

    services.turns.script = turn
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent()))
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    # A replica that has not seen the token before.
    verifier = TokenVerifier(public_key_of(services.private_key))
    assert [verifier.verify(token).run_id for token in tokens[1:]] == [events[0].run_id]


async def test_usage_includes_the_reply_that_was_streaming_when_its_process_died(
    services: ScriptedServices,
) -> None:
    def sent(message_id: str) -> turn_pb.ExecuteRunResponse:
        request = turn_pb.ModelRequestSent(
            message_id=message_id, prompt_tokens=50, bytes_per_token=2
        )
        return turn_pb.ExecuteRunResponse(request=request)

    async def turn(request: Any) -> AsyncIterator[Any]:
        yield started()
        yield step(1)
        if request.attempt == 1:
            yield sent("message-1")
            yield delta("half a rep", "message-1")
            raise OSError("the replica died")
        yield sent("message-2")
        yield delta("whole reply", "message-2")
        usage = usage_pb2.Usage(prompt_tokens=40, completion_tokens=6, total_tokens=46)
        reply = turn_pb.ReplyReceived(message_id="message-2", usage=usage)
        yield turn_pb.ExecuteRunResponse(reply=reply)
        yield stored("whole reply", "message-2")
        end = finished()
        end.run_finished.usage.CopyFrom(usage)
        yield end

    services.turns.script = turn
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent()))
    run = await gateway.run(events[0].run_id)
    assert run.usage == events[-1].run_finished.usage
    # The reply of attempt 1 has 50 tokens of prompt and 10 bytes of text.
    prompt, completion = 50 + 40, 5 + 6
    assert run.usage == usage_pb2.Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        estimated=True,
    )


async def test_the_end_of_a_run_is_stored_when_the_database_is_available_again(
    services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await services.gateway()
    store = _servicer(gateway)._store
    finish, away = store.finish, 2

    async def finish_later(*args: Any, **names: Any) -> Any:
        nonlocal away
        if away:
            away -= 1
            raise UnavailableError("The database is away.")
        return await finish(*args, **names)

    monkeypatch.setattr(store, "finish", finish_later)
    assert kinds(await collect(gateway.send(services.new_agent()))) == REPLY_EVENTS
    assert len(services.turns.requests) == 1


async def test_a_gateway_with_expired_leases_does_not_claim_its_own_runs(
    services: ScriptedServices,
) -> None:
    gate = asyncio.Event()

    services.turns.script = plays(started(), step(), gate, stored("done"), finished())
    # The gateway neither renews its leases nor claims runs by itself.
    gateway = await services.gateway(lease_s=0.2, heartbeat_s=600, poll_s=600)
    run = await gateway.start_run(services.new_agent())
    await eventually(lambda: services.turns.requests)
    servicer = _servicer(gateway)
    dispatcher, store = servicer._dispatcher, servicer._store
    async with store._worker.system_transaction() as connection:
        await connection.execute(
            sql("UPDATE gateway.runs SET lease_until = now() - '1 s'::interval")
        )
    # It was away from the database, or the database's clock was set forward.
    await dispatcher._claim()
    gate.set()
    events = await collect(gateway.stream(run.id))
    assert kinds(events)[-2:] == ["message_stored", "run_finished"]
    assert [request.attempt for request in services.turns.requests] == [1]
    assert (await gateway.run(run.id)).attempt == 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_run_whose_holders_are_lost_too_often_fails(
    services: ScriptedServices, cancelled: bool
) -> None:
    services.turns.script = plays(started(), step(), NEVER)
    # The gateway neither renews its leases nor claims runs, as if it were lost.
    lost = await services.gateway(heartbeat_s=600, poll_s=600)
    run = await lost.start_run(services.new_agent())
    await eventually(lambda: _stored_events(lost, run.id, 2))
    servicer = _servicer(lost)
    async with servicer._store._worker.system_transaction() as connection:
        state = "CANCELLING" if cancelled else "RUNNING"
        await connection.execute(
            sql(
                "UPDATE gateway.runs SET lost_holders = 7, lease_until = now() - '1 s'::interval,"
                f" state = '{state}'"
            )
        )
    gateway = await services.gateway()
    events = await collect(gateway.stream(run.id))
    end = events[-1].run_finished
    if cancelled:
        assert end.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    else:
        assert end.error.reason == Reason.INTERNAL
        times = re.search(r"(\d+) times in a row", end.error.message)
        # More if the machine is so busy that the second gateway loses its lease, too.
        assert times is not None
        assert int(times[1]) >= 8
    assert len(services.turns.requests) == 1


async def test_a_repeated_step_after_a_take_over_counts_as_progress_once(
    services: ScriptedServices,
) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step(1)
        if request.attempt == 1:
            await asyncio.Event().wait()
        await first.wait()
        yield stored("one")
        yield step(2)
        await asyncio.Event().wait()

    first = asyncio.Event()
    services.turns.script = turn
    lost = await services.gateway(heartbeat_s=600, poll_s=600)
    run = await lost.start_run(services.new_agent())
    store = _servicer(lost)._store

    async def count() -> int:
        async with store._worker.system_transaction() as connection:
            result = await connection.execute(sql("SELECT lost_holders FROM gateway.runs"))
            return int(result.scalar_one())

    await eventually(lambda: _stored_events(lost, run.id, 2))
    async with store._worker.system_transaction() as connection:
        await connection.execute(
            sql("UPDATE gateway.runs SET lease_until = now() - '1 s'::interval")
        )
    await services.gateway()
    # The run was dispatched again and has begun the same step.
    await eventually(lambda: _stored_events(lost, run.id, 5))
    assert await count() == 1
    first.set()
    await eventually(lambda: _stored_events(lost, run.id, 7))
    assert await count() == 0


async def test_run_whose_stream_ends_without_run_finished_is_dispatched_again(
    services: ScriptedServices,
) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        if request.attempt == 3:
            yield finished()

    services.turns.script = turn
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent()))
    assert kinds(events).count("run_finished") == 1
    assert [request.attempt for request in services.turns.requests] == [1, 2, 3]


async def test_run_fails_with_the_reason_of_its_last_attempt(services: ScriptedServices) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        raise OSError("down")
        yield

    services.turns.script = turn
    gateway = await services.gateway(max_attempts=2)
    [end] = await collect(gateway.send(services.new_agent()))
    assert end.run_finished.stop_reason == run_event_pb2.STOP_REASON_ERROR
    assert end.run_finished.error.reason == "INTERNAL"
    assert end.run_finished.error.retryable
    run = await gateway.run(end.run_id)
    assert (run.state, run.attempt) == (pb.RUN_STATE_FAILED, 2)
    assert run.error == end.run_finished.error


async def test_attempts_refused_by_an_unavailable_service_are_not_counted(
    services: ScriptedServices,
) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        if request.attempt < 5:
            raise UnavailableError("Recall is away.")
        yield started()
        yield finished()

    services.turns.script = turn
    gateway = await services.gateway(max_attempts=2)
    events = await collect(gateway.send(services.new_agent()))
    assert kinds(events) == ["run_started", "run_finished"]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert len(services.turns.requests) == 5


async def test_a_run_without_progress_fails_after_the_maximum_of_attempts(
    services: ScriptedServices,
) -> None:
    services.turns.script = plays(started(), step())
    gateway = await services.gateway(max_attempts=2)
    events = await collect(gateway.send(services.new_agent()))
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_ERROR
    assert len(services.turns.requests) == 2


async def test_same_defect_twice_without_progress_ends_the_run(services: ScriptedServices) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        raise RecursionError("a defect")

    services.turns.script = turn
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent()))
    assert [request.attempt for request in services.turns.requests] == [1, 2]
    assert events[-1].run_finished.error.reason == "INTERNAL"
    assert (await gateway.run(events[0].run_id)).state == pb.RUN_STATE_FAILED


async def test_defects_of_a_run_that_makes_progress_are_dispatched_again(
    services: ScriptedServices,
) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        for number in range(1, request.attempt + 1):
            yield step(number)
            yield stored("a part", f"message-{number}")
        if request.attempt < 4:
            raise OSError("a defect")
        yield finished()

    services.turns.script = turn
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent()))
    assert [request.attempt for request in services.turns.requests] == [1, 2, 3, 4]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN


async def _stored_events(gateway: Gateway, run_id: str, number: int) -> bool:
    return bool((await gateway.run(run_id)).last_sequence >= number)


def _servicer(gateway: Gateway) -> Any:
    return gateway.service.services[0].servicer
