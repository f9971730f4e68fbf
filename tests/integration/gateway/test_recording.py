"""RecordRun: its request to the agent loop, and the keys that may read a recording."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from integration.gateway.projects import project, project_key
from integration.gateway.scripted_runs import event, finished, plays, started, stored
from integration.gateway.scripted_services import Gateway, ScriptedServices
from rpc_errors import reason
from run_events import collect
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb


def sent(system: bytes, removed: str = "") -> turn_pb.ExecuteRunResponse:
    digest = run_event_pb2.RequestDigest(system=system, window=[1, 3])
    if removed:
        digest.system_change.removed = removed
    request = turn_pb.ModelRequestSent(message_id="message-1", prompt_tokens=9, digest=digest)
    return turn_pb.ExecuteRunResponse(request=request)


def turn_of(*requests: turn_pb.ExecuteRunResponse) -> Any:
    async def turn(request: Any) -> AsyncIterator[Any]:
        yield started()
        for piece in requests:
            yield event(step_started=run_event_pb2.StepStarted(step=1, message_id="message-1"))
            yield piece
            yield turn_pb.ExecuteRunResponse(reply=turn_pb.ReplyReceived(message_id="message-1"))
        yield stored("Done.", "message-1")
        yield finished(steps=1)

    return turn


async def record(gateway: Gateway, run_id: str) -> bytes:
    request = pb.RecordRunRequest(run_id=run_id)
    call = gateway.runs.RecordRun(request, metadata=gateway.metadata)
    return b"".join([response.piece async for response in call])


async def refusal(gateway: Gateway, run_id: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await record(gateway, run_id)
    return f"{raised.value.code().name} {reason(raised.value)}"


async def test_agent_loop_gets_the_log_and_later_changes(services: ScriptedServices) -> None:
    gateway, agent = await services.gateway(), services.new_agent()
    services.turns.script = turn_of(sent(b"one"))
    events = await collect(gateway.send(agent, "Hello.", max_steps=7))
    for number in (2, 3):
        services.turns.script = turn_of(sent(b"%d" % number, f"text {number}"), sent(b"same"))
        await collect(gateway.send(agent))
    assert all(not call.HasField("request") for event in events for call in event.model_calls)

    assert await record(gateway, events[0].run_id) == b'{"format": "a test"}'

    first, *others = services.turns.recorded
    assert first.turn.run_id == events[0].run_id
    assert (first.turn.agent_id, first.turn.max_steps, first.turn.attempts) == (agent, 7, 1)
    log = [request.event for request in others if request.HasField("event")]
    assert [event.sequence for event in log] == [
        event.sequence for event in events if event.sequence
    ]
    assert [call.request.system for event in log for call in event.model_calls] == [b"one"]
    later = [request.later for request in others if request.HasField("later")]
    assert [(change.after, change.change.removed) for change in later] == [
        (b"3", "text 3"),
        (b"2", "text 2"),
    ]


async def test_recording_requires_read_access_to_the_project_of_the_run(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent()))
    run_id = events[0].run_id
    strangers = await project(gateway, "strangers")
    stranger = await project_key(gateway, strangers.id, "run", "read")
    assert await refusal(stranger, run_id) == "NOT_FOUND RUN_NOT_FOUND"
    runner = await project_key(gateway, services.local.project_id, "run")
    assert await refusal(runner, run_id) == "PERMISSION_DENIED SCOPE_MISSING"
    assert await refusal(gateway, "run") == "INVALID_ARGUMENT INVALID_ID"
    assert services.turns.recorded == []


async def test_an_active_run_cannot_be_recorded(services: ScriptedServices) -> None:
    go_on = asyncio.Event()

    services.turns.script = plays(started(), go_on, finished(steps=0))
    gateway = await services.gateway()
    run = await gateway.start_run(services.new_agent())
    assert await refusal(gateway, run.id) == "FAILED_PRECONDITION RUN_NOT_RECORDABLE"
    go_on.set()


async def test_recordings_of_a_project_are_made_one_after_the_other(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent()))
    services.turns.may_record.clear()
    calls = [asyncio.create_task(record(gateway, events[0].run_id)) for _ in range(10)]
    async with asyncio.timeout(20):
        [refused], waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    error = refused.exception()
    assert isinstance(error, grpc.aio.AioRpcError)
    assert f"{error.code().name} {reason(error)}" == "RESOURCE_EXHAUSTED OVERLOADED"
    # One recording is being made, and eight wait for it.
    assert len(waiting) == 9
    services.turns.may_record.set()
    assert await asyncio.gather(*waiting) == [b'{"format": "a test"}'] * 9
    assert services.turns.most_recording == 1
