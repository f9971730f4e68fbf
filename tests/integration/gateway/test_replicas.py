"""Several gateways on one database: each of them serves every run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest

from chat_messages import user_message
from integration.gateway.gateway_processes import start_process
from integration.gateway.scripted_runs import delta, finished, plays, started, step, stored
from integration.gateway.scripted_services import Gateway, ScriptedServices
from polling import eventually
from run_events import collect, kinds
from span_records import SpanRecorder
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_follow_service_pb2 as follow_pb
from strata.api.gateway.v1 import run_follow_service_pb2_grpc as follow_grpc
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.runs.events import run_follower
from strata.shared.telemetry import Telemetry
from strata.shared.tracing.spans import Tracer
from strata.standalone.ports import ReservedPort, pick_port

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


class Gate:
    """A turn of one step that ends when the gate opens; a second attempt does not wait."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def turn(self, request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        if request.attempt == 1:
            yield delta("half")
            await self.open.wait()
        yield stored("whole")
        yield finished()


async def test_a_run_is_followed_from_another_gateway(services: ScriptedServices) -> None:
    gate = Gate()
    services.turns.script = gate.turn
    first, second = await services.gateway(), await services.gateway()
    run = await first.start_run(services.new_agent())
    follower = asyncio.create_task(collect(second.stream(run.id)))
    await asyncio.sleep(0.2)
    gate.open.set()
    assert kinds(await follower) == [
        "run_started",
        "step_started",
        "message_stored",
        "run_finished",
    ]
    assert (await second.run(run.id)).state == pb.RUN_STATE_COMPLETED


async def holder_and_other(
    services: ScriptedServices, stack: AsyncExitStack
) -> tuple[Gateway, Gateway]:
    """Starts a gateway that others can reach, and another one."""
    port = stack.enter_context(ReservedPort()).number
    holder = await services.gateway(port=port, reuse_port=True, advertised_host="127.0.0.1")
    return holder, await services.gateway(poll_s=60)


async def test_tokens_are_streamed_through_a_gateway_that_does_not_hold_the_run(
    socket_services: ScriptedServices,
) -> None:
    services, gate = socket_services, Gate()
    services.turns.script = gate.turn
    async with AsyncExitStack() as stack:
        holder, other = await holder_and_other(services, stack)
        held = holder.send(services.new_agent())
        seen = []
        async for response in held:
            seen.append(response.event)
            if response.event.HasField("text_delta"):
                break
        followed = []
        async for response in other.stream(seen[0].run_id):
            followed.append(response.event)
            if not gate.open.is_set() and len(followed) == 3:
                # The text arrived while the turn was paused, so it was not read from the database.
                assert followed[2].text_snapshot.text == "half"
                gate.open.set()
        seen += [response.event async for response in held]
    assert kinds(followed)[3:] == ["message_stored", "run_finished"]
    durable = [event for event in seen if event.sequence]
    assert [event for event in followed if event.sequence] == durable


async def test_tokens_of_a_queued_message_are_streamed_by_the_gateway_that_accepted_it(
    socket_services: ScriptedServices,
) -> None:
    services, gate = socket_services, Gate()
    services.turns.script = gate.turn
    async with AsyncExitStack() as stack:
        holder, other = await holder_and_other(services, stack)
        agent = services.new_agent()
        active = await holder.start_run(agent)
        await eventually(lambda: services.turns.requests)
        has_text = asyncio.Event()

        services.turns.script = plays(
            started(),
            step(),
            delta("now", "message-2"),
            has_text,
            stored("now", "message-2"),
            finished(),
        )
        waiting = asyncio.create_task(first_text(other.send(agent), has_text))
        await eventually(lambda: _count(holder, agent, 2))
        gate.open.set()
        assert await waiting == "now"
        assert (await holder.run(active.id)).state == pb.RUN_STATE_COMPLETED


async def _count(gateway: Gateway, agent: str, count: int) -> bool:
    request = pb.ListRunsRequest(agent_id=agent)
    response = await gateway.runs.ListRuns(request, metadata=gateway.metadata, timeout=30)
    return len(response.runs) == count


async def first_text(call: Any, has_text: asyncio.Event) -> str:
    """Reads a stream to its end; sets the event at the first text; returns that text."""
    text = ""
    async for response in call:
        text = text or response.event.text_delta.text or response.event.text_snapshot.text
        if text:
            has_text.set()
    return text


async def test_a_run_is_followed_although_its_gateway_cannot_be_reached(
    socket_services: ScriptedServices,
) -> None:
    services, gate = socket_services, Gate()
    services.turns.script = gate.turn
    # No process listens on this port.
    holder = await services.gateway(advertised_host="127.0.0.2", port=pick_port())
    other = await services.gateway(poll_s=60)
    run = await holder.start_run(services.new_agent())
    following = asyncio.create_task(collect(other.stream(run.id)))
    await eventually(lambda: services.turns.requests)
    gate.open.set()
    assert kinds(await following) == [
        "run_started",
        "step_started",
        "message_stored",
        "run_finished",
    ]


async def test_an_unreachable_gateway_is_not_called_again_at_once(
    socket_services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, gate = socket_services, Gate()
    services.turns.script = gate.turn
    monkeypatch.setattr(run_follower, "_PEER_PAUSE_S", 600.0)
    # No process listens on this port.
    holder = await services.gateway(advertised_host="127.0.0.2", port=pick_port())
    other = await services.gateway(poll_s=60)
    servicer: Any = other.service.services[0].servicer
    peers = servicer._follower._peers
    asked, ask = [], peers.follow

    def count(*args: Any, **names: Any) -> Any:
        asked.append(args)
        return ask(*args, **names)

    monkeypatch.setattr(peers, "follow", count)
    run = await holder.start_run(services.new_agent())
    following = asyncio.create_task(collect(other.stream(run.id)))
    await eventually(lambda: asked)
    # A client that retries at once would do so many times.
    await asyncio.sleep(0.3)
    gate.open.set()
    assert kinds(await following)[-1] == "run_finished"
    assert len(asked) == 1


async def test_clients_cannot_call_the_internal_follow_method(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    stub = follow_grpc.RunFollowServiceStub(gateway.channel)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in stub.FollowRun(follow_pb.FollowRunRequest(), metadata=gateway.metadata):
            pass
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_run_is_cancelled_from_another_gateway(services: ScriptedServices) -> None:
    gate = Gate()
    services.turns.script = gate.turn
    first, second = await services.gateway(), await services.gateway()
    call = first.send(services.new_agent())
    run_id = (await anext(aiter(call))).event.run_id
    assert (await second.cancel(run_id)).state == pb.RUN_STATE_CANCELLING
    events = await collect(call)
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    await eventually(lambda: services.turns.cancelled)
    assert services.turns.cancelled == [run_id]
    assert services.turns.lost == []


async def test_a_request_id_is_known_to_every_gateway(services: ScriptedServices) -> None:
    first, second = await services.gateway(), await services.gateway()
    agent = services.new_agent()
    before = await collect(first.send(agent, request_id="r-1", stream_tokens=False))
    assert await collect(second.send(agent, request_id="r-1")) == before
    assert len(services.turns.requests) == 1


async def test_a_stopping_gateway_releases_its_runs_to_others(services: ScriptedServices) -> None:
    gate = Gate()
    services.turns.script = gate.turn
    first, second = (
        await services.gateway(lease_s=60, grace_s=0),
        await services.gateway(lease_s=60),
    )
    run = await first.start_run(services.new_agent())
    follower = asyncio.create_task(collect(second.stream(run.id)))
    # The turn stops in the middle of the step, not before the event was received.
    heard = first.stream(run.id)
    async for response in heard:
        if response.event.HasField("text_delta") or response.event.HasField("text_snapshot"):
            break
    heard.cancel()
    await first.stop()
    events = await follower
    # The lease of a minute was released, so the claim did not wait for its end.
    assert [request.attempt for request in services.turns.requests] == [1, 2]
    assert kinds(events)[-2:] == ["message_stored", "run_finished"]
    assert kinds(events).count("run_finished") == 1
    assert "step_restarted" in kinds(events)
    sequences = [event.sequence for event in events]
    assert sequences == list(range(1, len(events) + 1))


async def test_a_suspended_gateway_that_lost_its_lease_stops_writing(
    services: ScriptedServices,
) -> None:
    gate = Gate()
    services.turns.script = gate.turn
    # Never renews its leases, like a process that is paused.
    frozen = await services.gateway(lease_s=0.4, heartbeat_s=600, poll_s=600)
    agent = services.new_agent()
    call = frozen.send(agent)
    first = (await anext(aiter(call))).event
    other = await services.gateway()
    assert kinds(await collect(other.stream(first.run_id)))[-1] == "run_finished"
    gate.open.set()
    # Its own follower receives the end that the other gateway stored, and only that.
    rest = await collect(call)
    assert kinds(rest).count("run_finished") == 1
    assert [request.attempt for request in services.turns.requests] == [1, 2]
    stored_events = await collect(other.stream(first.run_id))
    assert kinds(stored_events).count("run_finished") == 1
    assert kinds(stored_events).count("message_stored") == 1


async def test_runs_of_a_killed_gateway_are_taken_over(socket_services: ScriptedServices) -> None:
    services = socket_services
    gate = Gate()
    services.turns.script = gate.turn
    process, address = await start_process(services, lease_s=5)
    try:
        survivor = await services.gateway()
        async with grpc.aio.insecure_channel(address) as channel:
            doomed = Gateway(
                survivor.service,
                channel,
                survivor.api_key,
                survivor.organization_key,
                survivor.stop,
            )
            agent = services.new_agent()
            active = await doomed.start_run(agent)
            waiting = await doomed.start_run(agent)
            seen = []
            async for response in doomed.stream(active.id):
                seen.append(response.event)
                if response.event.HasField("text_delta") or response.event.HasField(
                    "text_snapshot"
                ):
                    break
            process.send_signal(signal.SIGKILL)
            await process.wait()
        events = await collect(survivor.stream(active.id))
        # Every event that was received with a sequence is in the log, byte by byte, and none is
        # missing there.
        durable = [event for event in seen if event.sequence]
        assert len(durable) == 2
        assert [event.SerializeToString() for event in events[:2]] == [
            event.SerializeToString() for event in durable
        ]
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert kinds(events)[3:5] == ["step_restarted", "step_started"]
        assert kinds(events)[-2:] == ["message_stored", "run_finished"]
        run = await survivor.run(active.id)
        assert (run.state, run.attempt) == (pb.RUN_STATE_COMPLETED, 2)
        gate.open.set()
        assert kinds(await collect(survivor.stream(waiting.id)))[-1] == "run_finished"
        assert [request.run_id for request in services.turns.requests] == [
            active.id,
            active.id,
            waiting.id,
        ]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_run_that_is_taken_over_stays_in_its_trace(
    socket_services: ScriptedServices,
) -> None:
    services, recorder = socket_services, SpanRecorder()
    services.turns.script = Gate().turn
    first = await services.gateway(telemetry=Telemetry(tracer=Tracer(recorder)))
    second = await services.gateway(telemetry=Telemetry(tracer=Tracer(recorder)))
    request = pb.StartRunRequest(agent_id=services.new_agent(), messages=[user_message("Hello.")])
    metadata = (*first.metadata, ("traceparent", f"00-{TRACE}-{SPAN}-01"))
    run = (await first.runs.StartRun(request, metadata=metadata, timeout=30)).run
    await eventually(lambda: services.turns.requests)
    await first.stop()
    assert kinds(await collect(second.stream(run.id)))[-1] == "run_finished"
    await eventually(lambda: any(span.name == "invoke_agent" for span in recorder.spans))

    assert [request.attempt for request in services.turns.requests] == [1, 2]
    in_trace = [span for span in recorder.spans if span.trace_id == TRACE]
    [accepted] = [span for span in in_trace if span.name.endswith("/StartRun")]
    # Only the gateway that ended the run exports its span, whose id both of them know.
    [whole] = [span for span in in_trace if span.name == "invoke_agent"]
    attempts = [span for span in in_trace if span.name.endswith("/ExecuteRun")]
    assert accepted.parent_id == SPAN
    assert whole.parent_id == accepted.span_id
    assert [span.parent_id for span in attempts] == [whole.span_id, whole.span_id]
    assert whole.attributes["strata.run.attempt"] == 2
    assert whole.start_ns < attempts[0].start_ns


async def test_a_gateway_process_ends_cleanly_on_sigterm(socket_services: ScriptedServices) -> None:
    services = socket_services
    services.turns.script = Gate().turn
    process, address = await start_process(services, lease_s=60)
    survivor = await services.gateway(lease_s=60)
    async with grpc.aio.insecure_channel(address) as channel:
        stopped = Gateway(
            survivor.service, channel, survivor.api_key, survivor.organization_key, survivor.stop
        )
        run = await stopped.start_run(services.new_agent())
        await eventually(lambda: services.turns.requests)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert kinds(await collect(survivor.stream(run.id)))[-1] == "run_finished"


async def test_following_a_run_from_any_gateway_returns_only_events_after_the_sequence(
    socket_services: ScriptedServices,
) -> None:
    services, gate = socket_services, Gate()
    services.turns.script = gate.turn
    async with AsyncExitStack() as stack:
        holder, other = await holder_and_other(services, stack)
        run = await holder.start_run(services.new_agent())
        reached = {gateway: asyncio.Event() for gateway in (holder.address, other.address)}

        async def follow(gateway: Gateway, after: int) -> list[int]:
            events = []
            async for response in gateway.stream(run.id, after):
                events.append(response.event)
                # The follower of the running turn has received its text.
                reached[gateway.address].set()
            return [event.sequence for event in events if event.sequence]

        followers = {
            (gateway.address, after): asyncio.create_task(follow(gateway, after))
            for gateway in (holder, other)
            for after in (0, 1, 2, 3, 4, 5, 2**40)
        }
        await asyncio.gather(*(reached_event.wait() for reached_event in reached.values()))
        gate.open.set()
        for (_, after), following in followers.items():
            assert await following == list(range(after + 1, 5))
        for gateway in (holder, other):
            assert kinds(await collect(gateway.stream(run.id, 2**40))) == []
