"""A turn relayed through SendMessage, and turns of one conversation that follow each other."""

from __future__ import annotations

import asyncio
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
    reply,
    started,
    step,
    stored,
)
from integration.gateway.scripted_services import ScriptedServices
from metering import wait_for_following_events
from polling import eventually
from run_events import collect, kinds
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb

STORED_SEQUENCES = [1, 2, 3, 4]


async def test_turn_is_relayed_and_stored(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    agent = services.new_agent()
    call = gateway.send(agent, max_steps=9)
    events = await collect(call)
    assert kinds(events) == REPLY_EVENTS
    assert [event.sequence for event in events] == [1, 2, 0, 0, 3, 4]
    [request] = services.turns.requests
    assert (request.attempt, request.agent_id, request.max_steps) == (1, agent, 9)
    assert request.conversation_id == agent.replace("agent-", "conversation-")
    assert request.messages[0].parts[0].text.text == "Hi"
    assert {event.run_id for event in events} == {request.run_id}
    assert all(event.HasField("create_time") for event in events)
    initial = dict(await call.initial_metadata())
    assert initial["x-run-id"] == request.run_id

    run = await gateway.run(request.run_id)
    assert run.state == pb.RUN_STATE_COMPLETED
    assert (run.step_count, run.usage.total_tokens, run.last_sequence) == (1, 10, 4)
    assert run.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert list(run.taint) == [message_pb2.PROVENANCE_WEB]
    again = await collect(gateway.stream(request.run_id))
    assert [event.sequence for event in again] == STORED_SEQUENCES
    assert again[-1] == events[-1]


async def test_the_turn_acts_with_a_token_of_the_run(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    await collect(gateway.send(services.new_agent()))
    [caller] = services.turns.callers
    assert caller.run_id == services.turns.requests[0].run_id
    assert caller.project_id == services.local.project_id
    assert "run" in caller.scopes


async def test_stream_without_tokens_has_no_text_deltas(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent(), stream_tokens=False))
    assert "text_delta" not in kinds(events)
    assert kinds(events)[-1] == "run_finished"


async def test_a_plain_turn_costs_three_statements_and_three_commits(
    services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They store the start with the lease, the first step, and the end with the last message."""
    wait_for_following_events(monkeypatch)
    shown = asyncio.Event()

    async def send() -> None:
        async for response in gateway.send(agent):
            if response.event.HasField("text_delta"):
                shown.set()

    services.turns.script = plays(
        started(), step(), delta("Hello!"), shown, stored("Hello!"), finished()
    )
    gateway = await services.gateway(poll_s=30, heartbeat_s=30)
    agent = services.new_agent()
    await send()
    shown.clear()
    servicer: Any = gateway.service.services[0].servicer
    database = servicer._store._database
    before = database.statistics.round_trips
    with database.statistics.record() as texts:
        await send()
    assert database.statistics.round_trips - before == 3, texts
    assert services.agents.calls == ["GetAgent"]


async def test_no_task_reads_the_requests_of_a_turn_after_its_end(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    agent = services.new_agent()
    assert kinds(await collect(gateway.send(agent))) == REPLY_EVENTS
    await eventually(
        lambda: not [task for task in asyncio.all_tasks() if "request_iterator" in repr(task)]
    )


async def test_messages_of_a_busy_conversation_run_one_after_the_other(
    services: ScriptedServices,
) -> None:
    running: list[str] = []
    most = 0
    all_sent = asyncio.Event()

    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        nonlocal most
        running.append(request.run_id)
        most = max(most, len(running))
        yield started()
        await all_sent.wait()
        await asyncio.sleep(0.05)
        running.remove(request.run_id)
        yield finished()

    services.turns.script = turn
    gateway = await services.gateway()
    agent = services.new_agent()
    runs = [await gateway.start_run(agent, max_steps=number + 1) for number in range(4)]
    assert [run.state for run in runs[1:]] == [pb.RUN_STATE_QUEUED] * 3
    all_sent.set()
    for events in await asyncio.gather(*(collect(gateway.stream(run.id)) for run in runs)):
        assert kinds(events) == ["run_started", "run_finished"]
    assert most == 1
    assert [request.run_id for request in services.turns.requests] == [run.id for run in runs]


async def test_a_busy_conversation_can_be_refused_or_interrupted(
    services: ScriptedServices,
) -> None:
    services.turns.script = plays(started(), step(), stored("half"), NEVER)
    gateway = await services.gateway()
    agent = services.new_agent()
    first = gateway.send(agent)
    async for response in first:
        if response.event.HasField("message_stored"):
            break
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(gateway.send(agent, on_busy=pb.ON_BUSY_REJECT))
    assert raised.value.code() is grpc.StatusCode.ABORTED

    services.turns.script = reply("second")
    second = await collect(gateway.send(agent, on_busy=pb.ON_BUSY_INTERRUPT))
    # A queued run can end before anybody follows it: deltas are not stored.
    assert [kind for kind in kinds(second) if kind != "text_delta"] == [
        kind for kind in REPLY_EVENTS if kind != "text_delta"
    ]
    rest = await collect(first)
    assert rest[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    # The usage of the interrupted turn is kept.
    assert rest[-1].run_finished.usage.total_tokens == 10
    assert rest[-1].run_finished.step_count == 1
    assert list(rest[-1].run_finished.taint) == [message_pb2.PROVENANCE_MCP]
    await eventually(lambda: services.turns.cancelled)
    assert services.turns.cancelled == [services.turns.requests[0].run_id]


async def test_a_finished_turn_is_not_interrupted_at_its_end(
    socket_services: ScriptedServices,
) -> None:
    """The agent loop would log it as CANCELLED."""
    services = socket_services

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield finished()
        # Work that is left after the last event.
        await asyncio.sleep(0.2)
        ended.append(True)

    ended: list[bool] = []
    services.turns.script = turn
    gateway = await services.gateway()
    for _ in range(3):
        await collect(gateway.send(services.new_agent()))
    await eventually(lambda: len(ended) == 3)
    assert services.turns.lost == []


async def test_next_message_is_answered_after_a_failed_run(services: ScriptedServices) -> None:
    services.turns.script = plays(started(), finished(run_event_pb2.STOP_REASON_LLM_API_ERROR))
    gateway = await services.gateway()
    agent = services.new_agent()
    events = await collect(gateway.send(agent))
    assert (await gateway.run(events[0].run_id)).state == pb.RUN_STATE_FAILED
    services.turns.script = reply("fine")
    assert kinds(await collect(gateway.send(agent))) == REPLY_EVENTS
