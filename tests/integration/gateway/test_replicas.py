"""Several gateways on one database: any of them answers for every run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio

from integration.gateway.world import (
    Gateway,
    World,
    collect,
    delta,
    eventually,
    finished,
    kinds,
    started,
    step,
    stored,
)
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb

_ROOTS = [str(Path(__file__).parents[3] / root) for root in ("shared", "services", "gateway")]


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


async def test_a_run_is_followed_from_another_gateway(world: World) -> None:
    gate = Gate()
    world.turns.script = gate.turn
    first, second = await world.gateway(), await world.gateway()
    run = await first.start_run(world.new_agent())
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


async def test_a_run_is_cancelled_from_another_gateway(world: World) -> None:
    gate = Gate()
    world.turns.script = gate.turn
    first, second = await world.gateway(), await world.gateway()
    call = first.send(world.new_agent())
    run_id = (await anext(aiter(call))).event.run_id
    assert (await second.cancel(run_id)).state == pb.RUN_STATE_CANCELLING
    events = await collect(call)
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    await eventually(lambda: world.turns.cancelled)
    assert world.turns.cancelled == [run_id]


async def test_a_request_id_is_known_to_every_gateway(world: World) -> None:
    first, second = await world.gateway(), await world.gateway()
    agent = world.new_agent()
    before = await collect(first.send(agent, request_id="r-1", stream_tokens=False))
    assert await collect(second.send(agent, request_id="r-1")) == before
    assert len(world.turns.requests) == 1


async def test_a_gateway_that_stops_hands_its_runs_over(world: World) -> None:
    gate = Gate()
    world.turns.script = gate.turn
    first, second = await world.gateway(lease_s=60, grace_s=0), await world.gateway(lease_s=60)
    run = await first.start_run(world.new_agent())
    follower = asyncio.create_task(collect(second.stream(run.id)))
    # It stops in the middle of the step, not before it has heard of it.
    heard = first.stream(run.id)
    async for response in heard:
        if response.event.HasField("text_delta") or response.event.HasField("text_snapshot"):
            break
    heard.cancel()
    await first.stop()
    events = await follower
    # The lease of a minute was given back: nobody had to wait for it to run out.
    assert [each.attempt for each in world.turns.requests] == [1, 2]
    assert kinds(events)[-2:] == ["message_stored", "run_finished"]
    assert kinds(events).count("run_finished") == 1
    assert "step_restarted" in kinds(events)
    sequences = [each.sequence for each in events]
    assert sequences == sorted(set(sequences))


async def test_a_frozen_gateway_finds_its_lease_lost_and_stops(world: World) -> None:
    gate = Gate()
    world.turns.script = gate.turn
    # Never renews: as a process that stands still would.
    frozen = await world.gateway(lease_s=0.4, heartbeat_s=600, poll_s=600)
    agent = world.new_agent()
    call = frozen.send(agent)
    first = (await anext(aiter(call))).event
    other = await world.gateway()
    assert kinds(await collect(other.stream(first.run_id)))[-1] == "run_finished"
    gate.open.set()
    # Its own follower gets the end that the other gateway stored, and only that.
    rest = await collect(call)
    assert kinds(rest).count("run_finished") == 1
    assert [each.attempt for each in world.turns.requests] == [1, 2]
    stored_events = await collect(other.stream(first.run_id))
    assert kinds(stored_events).count("run_finished") == 1
    assert kinds(stored_events).count("message_stored") == 1


async def test_runs_of_a_killed_gateway_are_taken_over(network_world: World) -> None:
    world = network_world
    gate = Gate()
    world.turns.script = gate.turn
    process, address = await start_process(world, lease_s=1.5)
    try:
        survivor = await world.gateway()
        async with grpc.aio.insecure_channel(address) as channel:
            doomed = Gateway(survivor.room, channel, survivor.api_key, survivor.stop)
            agent = world.new_agent()
            active = await doomed.start_run(agent)
            waiting = await doomed.start_run(agent)
            await eventually(lambda: world.turns.requests)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        events = await collect(survivor.stream(active.id))
        assert kinds(events)[-2:] == ["message_stored", "run_finished"]
        run = await survivor.run(active.id)
        assert (run.state, run.attempt) == (pb.RUN_STATE_COMPLETED, 2)
        gate.open.set()
        assert kinds(await collect(survivor.stream(waiting.id)))[-1] == "run_finished"
        assert [each.run_id for each in world.turns.requests] == [
            active.id,
            active.id,
            waiting.id,
        ]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_gateway_process_ends_cleanly_on_sigterm(network_world: World) -> None:
    world = network_world
    world.turns.script = Gate().turn
    process, address = await start_process(world, lease_s=60)
    survivor = await world.gateway(lease_s=60)
    async with grpc.aio.insecure_channel(address) as channel:
        stopped = Gateway(survivor.room, channel, survivor.api_key, survivor.stop)
        run = await stopped.start_run(world.new_agent())
        await eventually(lambda: world.turns.requests)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    assert kinds(await collect(survivor.stream(run.id)))[-1] == "run_finished"


async def start_process(world: World, **changes: Any) -> tuple[asyncio.subprocess.Process, str]:
    """Starts a gateway as a process of its own, as `strata-gateway` does."""
    settings = world.settings(**changes)
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(_ROOTS),
        "STRATA_GATEWAY_PORT": "0",
        "STRATA_GATEWAY_DATABASE_URL": settings.database_url,
        "STRATA_GATEWAY_WORKER_DATABASE_URL": settings.worker_database_url,
        "STRATA_GATEWAY_TOKEN_PRIVATE_KEY": settings.token_private_key,
        "STRATA_GATEWAY_KEY_PEPPER": settings.key_pepper,
        "STRATA_GATEWAY_LEASE_S": str(settings.lease_s),
        "STRATA_GATEWAY_HEARTBEAT_S": str(settings.heartbeat_s),
        "STRATA_GATEWAY_POLL_S": str(settings.poll_s),
        "STRATA_GATEWAY_DRAIN_S": "0",
        "STRATA_GATEWAY_GRACE_S": "0.2",
        **{
            f"STRATA_GATEWAY_TARGETS__{room.upper()}": target
            for room, target in world.targets.items()
        },
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "strata.gateway.main",
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
    assert line.startswith("READY gateway "), line
    return process, line.split()[-1]
