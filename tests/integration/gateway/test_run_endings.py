"""Ends of a run before its reply: cancelled, past its deadline, or without its agent."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import grpc
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
from integration.gateway.scripted_services import ScriptedServices
from polling import eventually
from run_events import collect, kinds
from strata.api.agent_loop.v1 import agent_service_pb2, agent_service_pb2_grpc
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.runs.dispatch.attempts import DispatchTerms
from strata.protocol.errors import NotFoundError, Reason, UnavailableError
from strata.shared.unstored_steps import step_not_stored


@pytest.fixture
def short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the time that a turn has to end after its deadline."""
    terms = functools.partial(DispatchTerms, settle_s=0.3)
    monkeypatch.setattr("strata.gateway.compose.runs.DispatchTerms", terms)


async def test_a_running_turn_is_cancelled(services: ScriptedServices) -> None:
    services.turns.script = plays(started(), NEVER)
    gateway = await services.gateway()
    call = gateway.send(services.new_agent())
    await anext(aiter(call))
    run_id = services.turns.requests[0].run_id
    assert (await gateway.cancel(run_id)).state == pb.RUN_STATE_CANCELLING
    rest = await collect(call)
    assert [event.run_finished.stop_reason for event in rest] == [
        run_event_pb2.STOP_REASON_CANCELLED
    ]
    await eventually(lambda: services.turns.cancelled == [run_id])
    assert (await gateway.cancel(run_id)).state == pb.RUN_STATE_CANCELLED


async def test_a_waiting_run_is_cancelled_at_once(services: ScriptedServices) -> None:
    gate = asyncio.Event()

    services.turns.script = plays(started(), gate, finished())
    gateway = await services.gateway()
    agent = services.new_agent()
    first = await gateway.start_run(agent)
    waiting = await gateway.start_run(agent)
    assert waiting.state == pb.RUN_STATE_QUEUED
    follower = asyncio.create_task(collect(gateway.stream(waiting.id)))
    await asyncio.sleep(0.05)
    assert (await gateway.cancel(waiting.id)).state == pb.RUN_STATE_CANCELLED
    assert kinds(await follower) == ["run_finished"]
    gate.set()
    assert kinds(await collect(gateway.stream(first.id)))[-1] == "run_finished"
    assert len(services.turns.requests) == 1


async def test_cancelled_turn_reports_its_stored_messages(services: ScriptedServices) -> None:
    endless = plays(started(), step(), NEVER)

    settled = plays(stored("cut off"), finished(run_event_pb2.STOP_REASON_CANCELLED))

    services.turns.script, services.turns.on_cancel = endless, settled
    gateway = await services.gateway()
    call = gateway.send(services.new_agent())
    events = []
    async for response in call:
        events.append(response.event)
        if response.event.HasField("step_started"):
            await gateway.cancel(response.event.run_id)
    assert kinds(events)[2:] == ["message_stored", "run_finished"]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    assert (await gateway.run(events[0].run_id)).state == pb.RUN_STATE_CANCELLED
    assert len(services.turns.requests) == 1


async def test_run_stays_cancelling_until_its_last_step_is_stored(
    services: ScriptedServices,
) -> None:
    settled = plays(stored("cut off"), finished(run_event_pb2.STOP_REASON_CANCELLED))
    attempts = 0

    async def not_stored(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise step_not_stored()
        assert run.state == pb.RUN_STATE_CANCELLING
        async for event in settled(request):
            yield event

    services.turns.script = plays(started(), step(), NEVER)
    services.turns.on_cancel = not_stored
    gateway = await services.gateway()
    events = []
    async for response in gateway.send(services.new_agent()):
        events.append(response.event)
        if response.event.HasField("step_started"):
            run = await gateway.cancel(response.event.run_id)
    assert kinds(events)[-2:] == ["message_stored", "run_finished"]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    assert attempts == 3
    assert (await gateway.run(events[0].run_id)).state == pb.RUN_STATE_CANCELLED


@pytest.mark.parametrize("ending", ["cancelled", "failed", "deadline"])
async def test_text_of_a_run_that_ends_before_it_is_stored_is_withdrawn_for_every_client(
    services: ScriptedServices, ending: str, short_settling: None
) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        opened = step()
        opened.step_started.message_id = "message-1"
        yield opened
        yield delta("half")
        if ending == "failed":
            yield finished(run_event_pb2.STOP_REASON_ERROR)
        await asyncio.Event().wait()

    gateway = await services.gateway(run_timeout_s=6.0 if ending == "deadline" else 60.0)
    assert kinds(await collect(gateway.send(services.new_agent()))) == REPLY_EVENTS
    services.turns.script = turn
    events = []
    async for response in gateway.send(services.new_agent()):
        events.append(response.event)
        if ending == "cancelled" and response.event.HasField("text_delta"):
            await gateway.cancel(response.event.run_id)
    assert kinds(events)[-3:] == ["text_delta", "step_restarted", "run_finished"]
    restarted = events[-2].step_restarted
    assert restarted.given_up
    assert restarted.message_id == events[-3].text_delta.message_id
    again = await collect(gateway.stream(events[0].run_id))
    assert again == [event for event in events if event.sequence]


async def test_a_run_has_a_deadline(services: ScriptedServices, short_settling: None) -> None:
    gateway = await services.gateway(run_timeout_s=6.0)
    # The time limit of a run includes connecting; a connection is made beforehand.
    assert kinds(await collect(gateway.send(services.new_agent()))) == REPLY_EVENTS
    services.turns.script = plays(started(), NEVER)
    events = await collect(gateway.send(services.new_agent()))
    assert events[-1].run_finished.error.reason == "DEADLINE_EXCEEDED"
    await eventually(lambda: len(services.turns.lost) == 1)


async def test_turn_that_ends_at_its_deadline_reports_its_stored_messages(
    services: ScriptedServices,
) -> None:
    """The agent loop has time to report the stored messages of the run."""

    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        await asyncio.sleep(request.remaining_time.ToTimedelta().total_seconds())
        yield stored("cut off")
        yield finished(run_event_pb2.STOP_REASON_ERROR)

    gateway = await services.gateway(run_timeout_s=2.0)
    services.turns.script = turn
    events = await collect(gateway.send(services.new_agent()))
    assert kinds(events)[-2:] == ["message_stored", "run_finished"]
    assert events[-1].run_finished.usage.total_tokens == 10


async def breaks_off(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
    """A turn whose agent loop becomes unavailable after the first step."""
    if request.attempt == 1:
        yield started()
        yield step()
    raise UnavailableError("The agent loop is away.")


async def test_a_run_interrupted_past_its_deadline_is_settled_once(
    services: ScriptedServices,
) -> None:
    async def settled(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        assert request.cancel
        assert request.remaining_time.ToTimedelta().total_seconds() == 0
        yield stored("cut off")
        yield finished(run_event_pb2.STOP_REASON_ERROR)

    gateway = await services.gateway(run_timeout_s=2.0)
    services.turns.script, services.turns.on_cancel = breaks_off, settled
    events = await collect(gateway.send(services.new_agent()))
    assert kinds(events)[-2:] == ["message_stored", "run_finished"]
    assert [request.cancel for request in services.turns.requests].count(True) == 1


async def test_run_past_its_deadline_ends_even_if_the_agent_loop_is_unreachable(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway(run_timeout_s=2.0)
    services.turns.script = breaks_off
    events = await collect(gateway.send(services.new_agent()))
    assert events[-1].run_finished.error.reason == Reason.DEPENDENCY_UNAVAILABLE
    assert [request.cancel for request in services.turns.requests].count(True) == 1


async def test_a_deleted_agent_fails_the_run_and_is_removed_from_the_cache(
    services: ScriptedServices,
) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        raise NotFoundError("gone", reason=Reason.AGENT_NOT_FOUND)
        yield

    gateway = await services.gateway()
    agent = services.new_agent()
    await collect(gateway.send(agent))
    services.agents.agents.clear()
    services.turns.script = turn
    [end] = await collect(gateway.send(agent))
    assert end.run_finished.error.reason == "AGENT_NOT_FOUND"
    assert not end.run_finished.error.retryable
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(gateway.send(agent))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_deleting_an_agent_cancels_its_active_and_queued_runs(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    agent, other = services.new_agent(), services.new_agent()
    services.turns.script = plays(started(), step(), NEVER)
    runs = [await gateway.start_run(agent) for _ in range(3)]
    kept = await gateway.start_run(other)
    await eventually(lambda: len(services.turns.requests) == 2)

    agents = agent_service_pb2_grpc.AgentServiceStub(gateway.channel)
    await agents.DeleteAgent(
        agent_service_pb2.DeleteAgentRequest(agent_id=agent), metadata=gateway.metadata
    )

    for run in runs:
        end = (await collect(gateway.stream(run.id)))[-1].run_finished
        assert end.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
        assert not end.HasField("error")
        assert (await gateway.run(run.id)).state == pb.RUN_STATE_CANCELLED
    assert (await gateway.run(kept.id)).state == pb.RUN_STATE_RUNNING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(gateway.send(agent))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_agent_deleted_during_a_run_cancels_it(services: ScriptedServices) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        if request.attempt == 1:
            yield started()
            yield step()
            raise OSError("the process dies")
        raise NotFoundError("gone", reason=Reason.AGENT_NOT_FOUND)

    services.turns.script = turn
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent()))
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    assert (await gateway.run(events[0].run_id)).state == pb.RUN_STATE_CANCELLED
