"""SendMessage and StreamRun: the way of a turn through the gateway."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from sqlalchemy import text

from integration.gateway.world import (
    Gateway,
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
from metering import wait_for_following_events
from strata.api.agent_loop.v1 import agent_service_pb2, agent_service_pb2_grpc
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2, usage_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.runs.attempts import DispatchTerms
from strata.shared.errors import NotFoundError, Reason, UnavailableError

WHOLE = [
    "run_started",
    "step_started",
    "text_delta",
    "text_delta",
    "message_stored",
    "run_finished",
]
DURABLE = [1, 2, 3, 4]


@pytest.fixture
def short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that does not end at its deadline is left soon."""
    terms = functools.partial(DispatchTerms, settle_s=0.3)
    monkeypatch.setattr("strata.gateway.main.DispatchTerms", terms)


async def test_a_turn_is_relayed_and_stored(world: World) -> None:
    gateway = await world.gateway()
    agent = world.new_agent()
    call = gateway.send(agent, max_steps=9)
    events = await collect(call)
    assert kinds(events) == WHOLE
    assert [event.sequence for event in events] == [1, 2, 0, 0, 3, 4]
    [request] = world.turns.requests
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
    assert [event.sequence for event in again] == DURABLE
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


async def test_a_plain_turn_costs_three_statements_and_three_commits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start with its lease, the first step that is shown, its end with its last message."""
    wait_for_following_events(monkeypatch)
    shown = asyncio.Event()

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        yield delta("Hello!")
        await shown.wait()
        yield stored("Hello!")
        yield finished()

    async def send() -> None:
        async for response in gateway.send(agent):
            if response.event.HasField("text_delta"):
                shown.set()

    world.turns.script = turn
    gateway = await world.gateway(poll_s=30, heartbeat_s=30)
    agent = world.new_agent()
    await send()
    shown.clear()
    servicer: Any = gateway.service.services[0].servicer
    database = servicer._store._database
    before = (database.statistics.statements, database.statistics.commits)
    with database.statistics.record() as texts:
        await send()
    after = (database.statistics.statements, database.statistics.commits)
    assert (after[0] - before[0], after[1] - before[1]) == (3, 3), texts
    assert world.agents.calls == ["GetAgent"]


async def test_a_resumed_client_gets_only_what_it_lacks(world: World) -> None:
    gateway = await world.gateway()
    await collect(gateway.send(world.new_agent()))
    run_id = world.turns.requests[0].run_id
    for after in range(5):
        events = await collect(gateway.stream(run_id, after))
        assert [event.sequence for event in events] == DURABLE[after:]


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
    assert snapshot.sequence == 0
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
    assert world.turns.cancelled == world.turns.lost == []
    assert (await gateway.run(run_id)).state == pb.RUN_STATE_COMPLETED


async def test_no_task_reads_the_requests_of_a_turn_after_its_end(world: World) -> None:
    gateway = await world.gateway()
    agent = world.new_agent()
    assert kinds(await collect(gateway.send(agent))) == WHOLE
    await eventually(
        lambda: not [task for task in asyncio.all_tasks() if "request_iterator" in repr(task)]
    )


async def test_a_repeated_request_id_replays_and_never_runs_twice(world: World) -> None:
    gateway = await world.gateway()
    agent = world.new_agent()
    first = await collect(gateway.send(agent, request_id="r-1"))
    again = await collect(gateway.send(agent, request_id="r-1"))
    assert [event for event in first if event.WhichOneof("event") != "text_delta"] == again
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
    assert [request.run_id for request in world.turns.requests] == [run.id for run in runs]


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
    # A run that was queued can be over before anybody follows it: deltas are not stored.
    assert [kind for kind in kinds(second) if kind != "text_delta"] == [
        kind for kind in WHOLE if kind != "text_delta"
    ]
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
    assert [event.run_finished.stop_reason for event in rest] == [
        run_event_pb2.STOP_REASON_CANCELLED
    ]
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
    assert [request.attempt for request in world.turns.requests] == [1, 2]
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


async def test_usage_has_the_reply_that_streamed_when_its_process_died(
    world: World,
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

    world.turns.script = turn
    gateway = await world.gateway()
    events = await collect(gateway.send(world.new_agent()))
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


async def test_end_of_a_run_is_stored_once_the_database_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await world.gateway()
    store = _servicer(gateway)._store
    finish, away = store.finish, 2

    async def finish_later(*args: Any, **names: Any) -> Any:
        nonlocal away
        if away:
            away -= 1
            raise UnavailableError("The database is away.")
        return await finish(*args, **names)

    monkeypatch.setattr(store, "finish", finish_later)
    assert kinds(await collect(gateway.send(world.new_agent()))) == WHOLE
    assert len(world.turns.requests) == 1


async def test_gateway_that_could_not_renew_its_leases_does_not_take_its_own_runs_for_orphans(
    world: World,
) -> None:
    gate = asyncio.Event()

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        await gate.wait()
        yield stored("done")
        yield finished()

    world.turns.script = turn
    # It neither renews nor looks by itself.
    gateway = await world.gateway(lease_s=0.2, heartbeat_s=600, poll_s=600)
    run = await gateway.start_run(world.new_agent())
    await eventually(lambda: world.turns.requests)
    servicer = _servicer(gateway)
    dispatcher, store = servicer._dispatcher, servicer._store
    async with store._worker.system_transaction() as connection:
        await connection.execute(
            text("UPDATE gateway.runs SET lease_until = now() - '1 s'::interval")
        )
    dispatcher._renewed -= 3600
    await dispatcher._claim()
    gate.set()
    events = await collect(gateway.stream(run.id))
    assert kinds(events)[-2:] == ["message_stored", "run_finished"]
    assert [request.attempt for request in world.turns.requests] == [1]
    assert (await gateway.run(run.id)).attempt == 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_run_whose_holders_are_lost_too_often_is_given_up(
    world: World, cancelled: bool
) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        await asyncio.Event().wait()

    world.turns.script = turn
    # They neither renew their leases nor look for other runs: as if they were lost.
    lost = await world.gateway(heartbeat_s=600, poll_s=600)
    run = await lost.start_run(world.new_agent())
    await eventually(lambda: _stored_events(lost, run.id, 2))
    servicer = _servicer(lost)
    async with servicer._store._worker.system_transaction() as connection:
        state = "CANCELLING" if cancelled else "RUNNING"
        await connection.execute(
            text(
                "UPDATE gateway.runs SET lost_holders = 7, lease_until = now() - '1 s'::interval,"
                f" state = '{state}'"
            )
        )
    gateway = await world.gateway()
    events = await collect(gateway.stream(run.id))
    end = events[-1].run_finished
    if cancelled:
        assert end.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    else:
        assert end.error.reason == Reason.INTERNAL
        assert "8 times in a row" in end.error.message
    assert len(world.turns.requests) == 1


async def test_step_of_a_run_that_was_taken_over_is_progress_once(world: World) -> None:
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
    world.turns.script = turn
    lost = await world.gateway(heartbeat_s=600, poll_s=600)
    run = await lost.start_run(world.new_agent())
    store = _servicer(lost)._store

    async def count() -> int:
        async with store._worker.system_transaction() as connection:
            result = await connection.execute(text("SELECT lost_holders FROM gateway.runs"))
            return int(result.scalar_one())

    await eventually(lambda: _stored_events(lost, run.id, 2))
    async with store._worker.system_transaction() as connection:
        await connection.execute(
            text("UPDATE gateway.runs SET lease_until = now() - '1 s'::interval")
        )
    await world.gateway()
    # It was dispatched again and has begun the same step.
    await eventually(lambda: _stored_events(lost, run.id, 5))
    assert await count() == 1
    first.set()
    await eventually(lambda: _stored_events(lost, run.id, 7))
    assert await count() == 0


async def _stored_events(gateway: Gateway, run_id: str, number: int) -> bool:
    return bool((await gateway.run(run_id)).last_sequence >= number)


def _servicer(gateway: Gateway) -> Any:
    return gateway.service.services[0].servicer


async def test_turn_that_has_ended_is_not_cut_off_in_its_last_step(network_world: World) -> None:
    """The agent loop would log it as CANCELLED."""
    world = network_world

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield finished()
        # What is left to do after the last event.
        await asyncio.sleep(0.2)
        ended.append(True)

    ended: list[bool] = []
    world.turns.script = turn
    gateway = await world.gateway()
    for _ in range(3):
        await collect(gateway.send(world.new_agent()))
    await eventually(lambda: len(ended) == 3)
    assert world.turns.lost == []


async def test_a_stream_that_ends_without_an_end_is_dispatched_again(world: World) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        if request.attempt == 3:
            yield finished()

    world.turns.script = turn
    gateway = await world.gateway()
    events = await collect(gateway.send(world.new_agent()))
    assert kinds(events).count("run_finished") == 1
    assert [request.attempt for request in world.turns.requests] == [1, 2, 3]


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


async def test_a_service_that_is_away_is_waited_for_and_not_counted(world: World) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        if request.attempt < 5:
            raise UnavailableError("Recall is away.")
        yield started()
        yield finished()

    world.turns.script = turn
    gateway = await world.gateway(max_attempts=2)
    events = await collect(gateway.send(world.new_agent()))
    assert kinds(events) == ["run_started", "run_finished"]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert len(world.turns.requests) == 5


async def test_a_turn_that_breaks_off_each_time_without_progress_is_given_up(
    world: World,
) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()

    world.turns.script = turn
    gateway = await world.gateway(max_attempts=2)
    events = await collect(gateway.send(world.new_agent()))
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_ERROR
    assert len(world.turns.requests) == 2


async def test_a_cancelled_turn_tells_what_it_still_stored(world: World) -> None:
    async def endless(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        await asyncio.Event().wait()

    async def settled(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield stored("cut off")
        yield finished(run_event_pb2.STOP_REASON_CANCELLED)

    world.turns.script, world.turns.on_cancel = endless, settled
    gateway = await world.gateway()
    call = gateway.send(world.new_agent())
    events = []
    async for response in call:
        events.append(response.event)
        if response.event.HasField("step_started"):
            await gateway.cancel(response.event.run_id)
    assert kinds(events)[2:] == ["message_stored", "run_finished"]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    assert (await gateway.run(events[0].run_id)).state == pb.RUN_STATE_CANCELLED
    assert len(world.turns.requests) == 1


@pytest.mark.parametrize("ending", ["cancelled", "failed", "deadline"])
async def test_text_of_a_run_that_ends_before_it_is_stored_is_withdrawn_for_every_client(
    world: World, ending: str, short_settling: None
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

    gateway = await world.gateway(run_timeout_s=6.0 if ending == "deadline" else 60.0)
    assert kinds(await collect(gateway.send(world.new_agent()))) == WHOLE
    world.turns.script = turn
    events = []
    async for response in gateway.send(world.new_agent()):
        events.append(response.event)
        if ending == "cancelled" and response.event.HasField("text_delta"):
            await gateway.cancel(response.event.run_id)
    assert kinds(events)[-3:] == ["text_delta", "step_restarted", "run_finished"]
    restarted = events[-2].step_restarted
    assert restarted.given_up
    assert restarted.message_id == events[-3].text_delta.message_id
    again = await collect(gateway.stream(events[0].run_id))
    assert again == [event for event in events if event.sequence]


async def test_same_defect_twice_without_progress_ends_the_run(world: World) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        raise RecursionError("a defect")

    world.turns.script = turn
    gateway = await world.gateway()
    events = await collect(gateway.send(world.new_agent()))
    assert [request.attempt for request in world.turns.requests] == [1, 2]
    assert events[-1].run_finished.error.reason == "INTERNAL"
    assert (await gateway.run(events[0].run_id)).state == pb.RUN_STATE_FAILED


async def test_defects_of_a_run_that_makes_progress_are_dispatched_again(world: World) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        for number in range(1, request.attempt + 1):
            yield step(number)
            yield stored("a part", f"message-{number}")
        if request.attempt < 4:
            raise OSError("a defect")
        yield finished()

    world.turns.script = turn
    gateway = await world.gateway()
    events = await collect(gateway.send(world.new_agent()))
    assert [request.attempt for request in world.turns.requests] == [1, 2, 3, 4]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN


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


async def test_a_run_has_a_deadline(world: World, short_settling: None) -> None:
    async def endless(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        await asyncio.Event().wait()

    gateway = await world.gateway(run_timeout_s=6.0)
    # The time of a run begins before there is a connection; one is made beforehand.
    assert kinds(await collect(gateway.send(world.new_agent()))) == WHOLE
    world.turns.script = endless
    events = await collect(gateway.send(world.new_agent()))
    assert events[-1].run_finished.error.reason == "DEADLINE_EXCEEDED"
    await eventually(lambda: len(world.turns.lost) == 1)


async def test_turn_that_ends_at_its_deadline_tells_what_it_stored(world: World) -> None:
    """The agent loop has the time to say so: the messages of the run are in its log."""

    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        await asyncio.sleep(request.remaining_time.ToTimedelta().total_seconds())
        yield stored("cut off")
        yield finished(run_event_pb2.STOP_REASON_ERROR)

    gateway = await world.gateway(run_timeout_s=2.0)
    world.turns.script = turn
    events = await collect(gateway.send(world.new_agent()))
    assert kinds(events)[-2:] == ["message_stored", "run_finished"]
    assert events[-1].run_finished.usage.total_tokens == 10


async def test_run_that_is_interrupted_past_its_deadline_is_settled_once(world: World) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        if request.attempt == 1:
            yield started()
            yield step()
        raise UnavailableError("The agent loop is away.")

    async def settled(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        assert request.cancel
        assert request.remaining_time.ToTimedelta().total_seconds() == 0
        yield stored("cut off")
        yield finished(run_event_pb2.STOP_REASON_ERROR)

    gateway = await world.gateway(run_timeout_s=2.0)
    world.turns.script, world.turns.on_cancel = turn, settled
    events = await collect(gateway.send(world.new_agent()))
    assert kinds(events)[-2:] == ["message_stored", "run_finished"]
    assert [request.cancel for request in world.turns.requests].count(True) == 1


async def test_run_whose_deadline_passed_ends_although_nothing_can_be_settled(
    world: World,
) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        if request.attempt == 1:
            yield started()
            yield step()
        raise UnavailableError("The agent loop is away.")

    gateway = await world.gateway(run_timeout_s=2.0)
    world.turns.script = turn
    events = await collect(gateway.send(world.new_agent()))
    assert events[-1].run_finished.error.reason == Reason.DEPENDENCY_UNAVAILABLE
    assert [request.cancel for request in world.turns.requests].count(True) == 1


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
    durable = [event for event in rest if not event.HasField("text_delta")]
    assert kinds(durable)[-2:] == ["message_stored", "run_finished"]
    assert kinds(rest).count("run_finished") == 1


async def _ended(gateway: Any, run_id: str) -> bool:
    return bool((await gateway.run(run_id)).state == pb.RUN_STATE_COMPLETED)


async def test_deleting_an_agent_cancels_its_active_and_queued_runs(world: World) -> None:
    async def endless(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        await asyncio.Event().wait()

    gateway = await world.gateway()
    agent, other = world.new_agent(), world.new_agent()
    world.turns.script = endless
    runs = [await gateway.start_run(agent) for _ in range(3)]
    kept = await gateway.start_run(other)
    await eventually(lambda: len(world.turns.requests) == 2)

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


async def test_agent_that_vanishes_during_a_run_cancels_it(world: World) -> None:
    async def turn(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        if request.attempt == 1:
            yield started()
            yield step()
            raise OSError("the process dies")
        raise NotFoundError("gone", reason=Reason.AGENT_NOT_FOUND)

    world.turns.script = turn
    gateway = await world.gateway()
    events = await collect(gateway.send(world.new_agent()))
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    assert (await gateway.run(events[0].run_id)).state == pb.RUN_STATE_CANCELLED
