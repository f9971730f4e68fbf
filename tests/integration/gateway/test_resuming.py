"""StreamRun and repeated request ids: clients that join, leave or resume a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from integration.gateway.scripted_runs import (
    delta,
    event,
    finished,
    plays,
    started,
    step,
    stored,
)
from integration.gateway.scripted_services import ScriptedServices
from polling import eventually
from run_events import collect, kinds
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb

STORED_SEQUENCES = [1, 2, 3, 4]


async def test_a_resumed_stream_has_only_the_events_after_the_sequence(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    await collect(gateway.send(services.new_agent()))
    run_id = services.turns.requests[0].run_id
    for after in range(5):
        events = await collect(gateway.stream(run_id, after))
        assert [event.sequence for event in events] == STORED_SEQUENCES[after:]


async def test_client_that_joins_during_a_reply_gets_a_snapshot_of_its_text(
    services: ScriptedServices,
) -> None:
    gate = asyncio.Event()

    services.turns.script = plays(
        started(),
        step(),
        event(reasoning_delta=run_event_pb2.ReasoningDelta(message_id="message-1", text="hm")),
        delta("Hel"),
        delta("lo"),
        gate,
        delta("!"),
        stored("Hello!"),
        finished(),
    )
    gateway = await services.gateway()
    first = gateway.send(services.new_agent())
    async for response in first:
        if response.event.text_delta.text == "lo":
            break
    run_id = services.turns.requests[0].run_id
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


async def test_a_client_that_disconnects_does_not_stop_the_run(services: ScriptedServices) -> None:
    gate = asyncio.Event()

    services.turns.script = plays(started(), gate, stored("done"), finished())
    gateway = await services.gateway()
    call = gateway.send(services.new_agent())
    await anext(aiter(call))
    call.cancel()
    await asyncio.sleep(0.1)
    gate.set()
    run_id = services.turns.requests[0].run_id
    assert kinds(await collect(gateway.stream(run_id, 1))) == ["message_stored", "run_finished"]
    assert services.turns.cancelled == services.turns.lost == []
    assert (await gateway.run(run_id)).state == pb.RUN_STATE_COMPLETED


async def test_a_repeated_request_id_replays_and_never_runs_twice(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    agent = services.new_agent()
    first = await collect(gateway.send(agent, request_id="r-1"))
    again = await collect(gateway.send(agent, request_id="r-1"))
    assert [event for event in first if event.WhichOneof("event") != "text_delta"] == again
    assert len(services.turns.requests) == 1
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(gateway.send(agent, "something else", request_id="r-1"))
    assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_a_repeated_request_id_follows_the_active_run(services: ScriptedServices) -> None:
    gate = asyncio.Event()

    services.turns.script = plays(started(), gate, finished())
    gateway = await services.gateway()
    agent = services.new_agent()
    first = gateway.send(agent, request_id="r-1")
    await anext(aiter(first))
    second = gateway.send(agent, request_id="r-1")
    assert (await anext(aiter(second))).event.HasField("run_started")
    gate.set()
    assert kinds(await collect(second)) == ["run_finished"]
    assert len(services.turns.requests) == 1


async def test_a_slow_client_gets_every_stored_event(services: ScriptedServices) -> None:
    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield started()
        yield step()
        for number in range(3000):
            yield delta(f"{number} ")
        yield stored("all")
        yield finished()

    services.turns.script = turn
    gateway = await services.gateway()
    call = gateway.send(services.new_agent())
    reader = aiter(call)
    first = (await anext(reader)).event
    await eventually(lambda: _ended(gateway, first.run_id))
    rest = [response.event async for response in reader]
    durable = [event for event in rest if not event.HasField("text_delta")]
    assert kinds(durable)[-2:] == ["message_stored", "run_finished"]
    assert kinds(rest).count("run_finished") == 1


async def _ended(gateway: Any, run_id: str) -> bool:
    return bool((await gateway.run(run_id)).state == pb.RUN_STATE_COMPLETED)
