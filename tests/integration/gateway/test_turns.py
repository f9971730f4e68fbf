"""SendMessage and StreamRun: the way of a turn through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from integration.gateway.world import (
    World,
    collect,
    delta,
    event,
    eventually,
    finished,
    kinds,
    reply,
    started,
    step,
    stored,
)
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.runs import live
from strata.shared.errors import NotFoundError, Reason

WHOLE = [
    "run_started",
    "step_started",
    "text_delta",
    "text_delta",
    "message_stored",
    "run_finished",
]
DURABLE = [1, 2, 3, 4]


async def test_a_turn_is_relayed_and_stored(world: World) -> None:
    gateway = await world.gateway()
    agent = world.new_agent()
    call = gateway.send(agent, max_steps=9)
    events = await collect(call)
    assert kinds(events) == WHOLE
    assert [each.sequence for each in events] == [1, 2, 2, 2, 3, 4]
    [request] = world.turns.requests
    assert (request.attempt, request.agent_id, request.max_steps) == (1, agent, 9)
    assert request.conversation_id == agent.replace("agent-", "conversation-")
    assert request.messages[0].parts[0].text.text == "Hi"
    assert {each.run_id for each in events} == {request.run_id}
    assert all(each.HasField("create_time") for each in events)
    initial = dict(await call.initial_metadata())
    assert initial["x-run-id"] == request.run_id

    run = await gateway.run(request.run_id)
    assert run.state == pb.RUN_STATE_COMPLETED
    assert (run.step_count, run.usage.total_tokens, run.last_sequence) == (1, 10, 4)
    assert run.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert list(run.taint) == [message_pb2.PROVENANCE_WEB]
    again = await collect(gateway.stream(request.run_id))
    assert [each.sequence for each in again] == DURABLE
    assert again[-1] == events[-1]


async def test_the_turn_acts_with_a_token_of_the_run(world: World) -> None:
    gateway = await world.gateway()
    await collect(gateway.send(world.new_agent()))
    [caller] = world.turns.callers
    assert caller.run_id == world.turns.requests[0].run_id
    assert world.local is not None
    assert caller.project_id == world.local.project_id
    assert "run" in caller.scopes


async def test_tokens_can_be_left_out(world: World) -> None:
    gateway = await world.gateway()
    events = await collect(gateway.send(world.new_agent(), stream_tokens=False))
    assert "text_delta" not in kinds(events)
    assert kinds(events)[-1] == "run_finished"


async def test_a_plain_turn_costs_two_statements_and_two_commits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a turn of more than a second reports is stored before its end, too.
    monkeypatch.setattr(live, "_REPORT_DELAY_S", 60.0)
    gateway = await world.gateway(poll_s=30, heartbeat_s=30)
    agent = world.new_agent()
    await collect(gateway.send(agent))
    servicer: Any = gateway.room.services[0].servicer
    database = servicer._store._database
    before = (database.statistics.statements, database.statistics.commits)
    with database.statistics.record() as texts:
        await collect(gateway.send(agent))
    after = (database.statistics.statements, database.statistics.commits)
    assert (after[0] - before[0], after[1] - before[1]) == (2, 2), texts
    assert world.agents.calls == ["GetAgent"]


async def test_a_resumed_client_gets_only_what_it_lacks(world: World) -> None:
    gateway = await world.gateway()
    await collect(gateway.send(world.new_agent()))
    run_id = world.turns.requests[0].run_id
    for after in range(5):
        events = await collect(gateway.stream(run_id, after))
        assert [each.sequence for each in events] == DURABLE[after:]


async def test_a_client_that_joins_in_mid_reply_gets_the_text_so_far(world: World) -> None:
    gate = asyncio.Event()

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        yield event(reasoning_delta=run_event_pb2.ReasoningDelta(message_id="message-1", text="hm"))
        yield delta("Hel")
        yield delta("lo")
        await gate.wait()
        yield delta("!")
        yield stored("Hello!")
        yield finished()

    world.turns.script = turn
    gateway = await world.gateway()
    first = gateway.send(world.new_agent())
    async for response in first:
        if response.event.text_delta.text == "lo":
            break
    run_id = world.turns.requests[0].run_id
    joined = gateway.stream(run_id, after=2)
    reader = aiter(joined)
    snapshot = (await anext(reader)).event
    assert snapshot.text_snapshot.text == "Hello"
    assert snapshot.text_snapshot.reasoning == "hm"
    assert snapshot.sequence == 2
    silent = gateway.stream(run_id, after=0, stream_tokens=False)
    gate.set()
    rest = [response.event async for response in reader]
    assert kinds(rest) == ["text_delta", "message_stored", "run_finished"]
    assert kinds(await collect(silent)) == [
        "run_started",
        "step_started",
        "message_stored",
        "run_finished",
    ]
    assert kinds([response.event async for response in first])[-1] == "run_finished"


async def test_a_client_that_leaves_does_not_stop_the_run(world: World) -> None:
    gate = asyncio.Event()

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        await gate.wait()
        yield stored("done")
        yield finished()

    world.turns.script = turn
    gateway = await world.gateway()
    call = gateway.send(world.new_agent())
    await anext(aiter(call))
    call.cancel()
    await asyncio.sleep(0.1)
    gate.set()
    run_id = world.turns.requests[0].run_id
    assert kinds(await collect(gateway.stream(run_id, 1))) == ["message_stored", "run_finished"]
    assert world.turns.cancelled == []
    assert (await gateway.run(run_id)).state == pb.RUN_STATE_COMPLETED


async def test_a_repeated_request_id_replays_and_never_runs_twice(world: World) -> None:
    gateway = await world.gateway()
    agent = world.new_agent()
    first = await collect(gateway.send(agent, request_id="r-1"))
    again = await collect(gateway.send(agent, request_id="r-1"))
    assert [each for each in first if each.WhichOneof("event") != "text_delta"] == again
    assert len(world.turns.requests) == 1
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(gateway.send(agent, "something else", request_id="r-1"))
    assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_a_repeated_request_id_follows_the_run_under_way(world: World) -> None:
    gate = asyncio.Event()

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        await gate.wait()
        yield finished()

    world.turns.script = turn
    gateway = await world.gateway()
    agent = world.new_agent()
    first = gateway.send(agent, request_id="r-1")
    await anext(aiter(first))
    second = gateway.send(agent, request_id="r-1")
    assert (await anext(aiter(second))).event.HasField("run_started")
    gate.set()
    assert kinds(await collect(second)) == ["run_finished"]
    assert len(world.turns.requests) == 1


async def test_messages_of_a_busy_conversation_run_one_after_the_other(world: World) -> None:
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

    world.turns.script = turn
    gateway = await world.gateway()
    agent = world.new_agent()
    runs = [await gateway.start_run(agent, max_steps=number + 1) for number in range(4)]
    assert [run.state for run in runs[1:]] == [pb.RUN_STATE_QUEUED] * 3
    all_sent.set()
    for events in await asyncio.gather(*(collect(gateway.stream(run.id)) for run in runs)):
        assert kinds(events) == ["run_started", "run_finished"]
    assert most == 1
    assert [each.run_id for each in world.turns.requests] == [run.id for run in runs]


async def test_a_busy_conversation_can_be_refused_or_interrupted(world: World) -> None:
    async def endless(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        yield stored("half")
        await asyncio.Event().wait()

    world.turns.script = endless
    gateway = await world.gateway()
    agent = world.new_agent()
    first = gateway.send(agent)
    async for response in first:
        if response.event.HasField("message_stored"):
            break
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(gateway.send(agent, on_busy=pb.ON_BUSY_REJECT))
    assert raised.value.code() is grpc.StatusCode.ABORTED

    world.turns.script = reply("second")
    second = await collect(gateway.send(agent, on_busy=pb.ON_BUSY_INTERRUPT))
    assert kinds(second) == WHOLE
    rest = await collect(first)
    assert rest[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    # What the interrupted turn had spent is not forgotten.
    assert rest[-1].run_finished.usage.total_tokens == 10
    assert rest[-1].run_finished.step_count == 1
    assert list(rest[-1].run_finished.taint) == [message_pb2.PROVENANCE_MCP]
    await eventually(lambda: world.turns.cancelled)
    assert world.turns.cancelled == [world.turns.requests[0].run_id]


async def test_a_running_turn_is_cancelled(world: World) -> None:
    async def endless(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        await asyncio.Event().wait()

    world.turns.script = endless
    gateway = await world.gateway()
    call = gateway.send(world.new_agent())
    await anext(aiter(call))
    run_id = world.turns.requests[0].run_id
    assert (await gateway.cancel(run_id)).state == pb.RUN_STATE_CANCELLING
    rest = await collect(call)
    assert [each.run_finished.stop_reason for each in rest] == [run_event_pb2.STOP_REASON_CANCELLED]
    await eventually(lambda: world.turns.cancelled == [run_id])
    assert (await gateway.cancel(run_id)).state == pb.RUN_STATE_CANCELLED


async def test_a_waiting_run_is_cancelled_at_once(world: World) -> None:
    gate = asyncio.Event()

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        await gate.wait()
        yield finished()

    world.turns.script = turn
    gateway = await world.gateway()
    agent = world.new_agent()
    first = await gateway.start_run(agent)
    waiting = await gateway.start_run(agent)
    assert waiting.state == pb.RUN_STATE_QUEUED
    follower = asyncio.create_task(collect(gateway.stream(waiting.id)))
    await asyncio.sleep(0.05)
    assert (await gateway.cancel(waiting.id)).state == pb.RUN_STATE_CANCELLED
    assert kinds(await follower) == ["run_finished"]
    gate.set()
    assert kinds(await collect(gateway.stream(first.id)))[-1] == "run_finished"
    assert len(world.turns.requests) == 1


async def test_a_broken_stream_is_dispatched_again_without_doubles(world: World) -> None:
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

    world.turns.script = turn
    gateway = await world.gateway()
    events = await collect(gateway.send(world.new_agent()))
    assert [each.attempt for each in world.turns.requests] == [1, 2]
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


async def test_a_stream_that_ends_without_an_end_is_dispatched_again(world: World) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        if request.attempt == 3:
            yield finished()

    world.turns.script = turn
    gateway = await world.gateway()
    events = await collect(gateway.send(world.new_agent()))
    assert kinds(events).count("run_finished") == 1
    assert [each.attempt for each in world.turns.requests] == [1, 2, 3]


async def test_a_turn_that_never_works_fails_with_its_reason(world: World) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        raise OSError("down")
        yield

    world.turns.script = turn
    gateway = await world.gateway(max_attempts=2)
    [end] = await collect(gateway.send(world.new_agent()))
    assert end.run_finished.stop_reason == run_event_pb2.STOP_REASON_ERROR
    assert end.run_finished.error.reason == "INTERNAL"
    assert end.run_finished.error.retryable
    run = await gateway.run(end.run_id)
    assert (run.state, run.attempt) == (pb.RUN_STATE_FAILED, 2)
    assert run.error == end.run_finished.error


async def test_the_next_message_goes_on_after_a_failed_run(world: World) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield finished(run_event_pb2.STOP_REASON_LLM_API_ERROR)

    world.turns.script = turn
    gateway = await world.gateway()
    agent = world.new_agent()
    events = await collect(gateway.send(agent))
    assert (await gateway.run(events[0].run_id)).state == pb.RUN_STATE_FAILED
    world.turns.script = reply("fine")
    assert kinds(await collect(gateway.send(agent))) == WHOLE


async def test_a_run_has_a_deadline(world: World) -> None:
    async def endless(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        await asyncio.Event().wait()

    gateway = await world.gateway(run_timeout_s=2.0)
    # The time of a run begins before there is a connection; one is made beforehand.
    assert kinds(await collect(gateway.send(world.new_agent()))) == WHOLE
    world.turns.script = endless
    events = await collect(gateway.send(world.new_agent()))
    assert events[-1].run_finished.error.reason == "DEADLINE_EXCEEDED"
    await eventually(lambda: len(world.turns.cancelled) == 1)


async def test_an_agent_that_is_gone_ends_the_run_and_is_not_believed_in_again(
    world: World,
) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        raise NotFoundError("gone", reason=Reason.AGENT_NOT_FOUND)
        yield

    gateway = await world.gateway()
    agent = world.new_agent()
    await collect(gateway.send(agent))
    world.agents.agents.clear()
    world.turns.script = turn
    [end] = await collect(gateway.send(agent))
    assert end.run_finished.error.reason == "AGENT_NOT_FOUND"
    assert not end.run_finished.error.retryable
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(gateway.send(agent))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_slow_follower_loses_nothing_durable(world: World) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        for number in range(3000):
            yield delta(f"{number} ")
        yield stored("all")
        yield finished()

    world.turns.script = turn
    gateway = await world.gateway()
    call = gateway.send(world.new_agent())
    reader = aiter(call)
    first = (await anext(reader)).event
    await eventually(lambda: _ended(gateway, first.run_id))
    rest = [response.event async for response in reader]
    durable = [each for each in rest if not each.HasField("text_delta")]
    assert kinds(durable)[-2:] == ["message_stored", "run_finished"]
    assert kinds(rest).count("run_finished") == 1


async def _ended(gateway: Any, run_id: str) -> bool:
    return bool((await gateway.run(run_id)).state == pb.RUN_STATE_COMPLETED)
