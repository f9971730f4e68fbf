"""All processes of a Strata are stopped, killed, or started twice."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

import grpc
import psutil
import pytest

from faults.live import Live, ModelThread, Turn, dialogue, slowly
from faults.load import talking
from live import LiveStrata, still_running
from prepared_folder import copy_prepared_folder
from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2

# The first test of a shape starts the Strata of all.
pytestmark = pytest.mark.timeout(240)

GENTLE = "gently, but within the grace of a stop"
BOTH = pytest.mark.parametrize(
    "live",
    [
        pytest.param(False, id="single"),
        pytest.param(True, id="split", marks=pytest.mark.slow),
    ],
    indirect=True,
)


async def test_a_second_start_on_the_folder_names_the_first_process(live: Live) -> None:
    async with live.client() as client:
        agent = await client.new_agent()
        active = asyncio.create_task(client.send(agent.id, GENTLE))
        second = live.launch()
        output, _ = await asyncio.to_thread(second.communicate, timeout=30)
        assert second.returncode == 1
        message = " ".join(output.decode().split())
        assert f"in use by process {live.process.pid} ({live.runtime.address})" in message
        assert str(live.folder.path) in message
        assert "Traceback" not in message
        assert (await active).ended_well
    assert live.process.poll() is None


async def test_a_start_on_a_used_port_ends_with_one_message(
    open_folder: Path, prepared_folder: Path, model: ModelThread
) -> None:
    copy_prepared_folder(prepared_folder, open_folder / "data")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environment = {"STRATA_GATEWAY_HTTP_PORT": str(port)}
        process = LiveStrata(open_folder / "data", model.url, environment=environment).launch()
        output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    message = " ".join(output.decode().split())
    assert f"Strata cannot listen on 127.0.0.1:{port} for HTTP: Address already in use" in message
    assert "Choose another address or port" in message
    assert "Traceback" not in message
    assert process.returncode == 2


@BOTH
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        # The test of an immediate stop also begins with SIGINT, so this case is slow only.
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.slow),
    ],
)
async def test_a_stop_waits_for_the_turn_and_leaves_no_process(
    live: Live, how: signal.Signals, model: ModelThread
) -> None:
    async with live.client() as client:
        agent = await client.new_agent()
        call = await client.begin(model, agent.id, GENTLE)
        family = live.tree()
        assert await live.stop(how, patience=25) == 0
        assert await still_running(family, 2) == []
        assert (await call).reply == f"You said: {GENTLE}"
    assert live.folder.running() is None
    assert "Traceback" not in live.log, live.log
    await live.start()
    async with live.client() as client:
        assert (await client.send(agent.id, "after")).ended_well
        log = await client.log(agent.default_conversation_id)
    assert [text for role, text in dialogue(log) if role == "user"] == [GENTLE, "after"]


@BOTH
async def test_an_immediate_stop_leaves_the_turn_to_be_resumed_at_the_next_start(
    live: Live, model: ModelThread
) -> None:
    async with live.client() as client:
        agent = await client.new_agent()
        assert (await client.send(agent.id, "before")).ended_well
        text = slowly()
        call = await client.begin(model, agent.id, text, request_id=agent.id)
        family = live.tree()
        live.process.send_signal(signal.SIGINT)
        # Two signals sent at the same time would be delivered as one.
        await client.shut_out()
        assert await live.stop(signal.SIGINT, patience=8) in {0, 130}
        assert await still_running(family, 5) == []
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await call
    assert broken.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert "Traceback" not in live.log, live.log
    await live.start()
    await _ends_well(live, agent, text)


@BOTH
async def test_all_processes_end_with_the_main_process_and_its_turn_continues_at_the_next_start(
    live: Live, model: ModelThread
) -> None:
    async with live.client() as client:
        agent = await client.new_agent()
        assert (await client.send(agent.id, "before")).ended_well
        text = slowly()
        call = await client.begin(model, agent.id, text, request_id=agent.id)
        family = live.tree()
        await live.stop(signal.SIGKILL)
        assert await still_running(family, 5) == []
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await call
    assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    assert live.folder.running() is None
    await live.start()
    await _ends_well(live, agent, text)


async def test_acknowledged_data_survives_a_kill_of_every_process(live: Live) -> None:
    async with live.client() as client:
        agent = await client.new_agent()
        assert (await client.send(agent.id, "my cat is called Mira")).ended_well
        assert (await client.send(agent.id, "remember my dog is called Odo")).ended_well
        assert (await client.send(agent.id, "archive my horse is called Xan")).ended_well
    family = live.tree()
    for process in family:
        # Processes that depend on processes killed before may have ended already.
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.kill()
    live.process.wait()
    assert await still_running(family, 5) == []
    key = live.key
    await live.start()
    assert live.key == key
    async with live.client() as client:
        lines = dialogue(await client.log(agent.default_conversation_id))
        assert [text for role, text in lines if role == "user"] == [
            "my cat is called Mira",
            "remember my dog is called Odo",
            "archive my horse is called Xan",
        ]
        assert "Mira" in (await client.send(agent.id, "recall cat")).reply
        assert "Xan" in (await client.send(agent.id, "search what is the horse's name")).reply
        log = await client.log(agent.default_conversation_id)
    system = next(m for m in log if m.role == message_pb2.ROLE_SYSTEM)
    assert system.sequence == 0
    async with talking(live, 2) as talks:
        while min(len(talk.sent_texts) for talk in talks) < 1:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(
            [(0.4, signal.SIGKILL), (1.8, signal.SIGTERM), (3.0, signal.SIGKILL)], id="three"
        ),
        pytest.param(
            [(delay, signal.SIGTERM) for delay in (0.4, 1.0, 1.8, 2.6, 3.5)],
            id="five-SIGTERM",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [(delay, signal.SIGKILL) for delay in (0.4, 1.0, 1.8, 2.6, 3.5)],
            id="five-SIGKILL",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_a_kill_during_the_start_leaves_no_process_and_no_damage(
    ends: list[tuple[float, signal.Signals]], open_folder: Path, model: ModelThread
) -> None:
    strata = Live(open_folder / "data", model.url)
    for delay, how in ends:
        process = strata.launch()
        await asyncio.sleep(delay)
        family = [psutil.Process(process.pid)]
        family += family[0].children(recursive=True)
        process.send_signal(how)
        output, _ = await asyncio.to_thread(process.communicate, timeout=25)
        assert b"Traceback" not in output, output.decode()
        assert process.returncode in {0, 1, -how}, output.decode()
        assert await still_running(family, 5) == []
    await strata.start()
    try:
        async with strata.client() as client:
            agent = await client.new_agent()
            assert (await client.send(agent.id, "well?")).ended_well
    finally:
        family = strata.tree()
        await strata.stop()
    assert await still_running(family, 2) == []


async def _ends_well(live: Live, agent: agent_service_pb2.Agent, text: str) -> None:
    """Asserts that the active run ends once, and that the conversation accepts another message."""
    async with live.client() as client:
        active = run_service_pb2.ListRunsRequest(agent_id=agent.id, page_size=1)
        run = (await client.runs.ListRuns(active, **client.call)).runs[0]
        assert run.request_id == agent.id
        followed: Turn = await client.follow(run.id)
        assert followed.ended_well, followed.finished
        next_one = await client.send(agent.id, "after")
        assert next_one.ended_well
        ended = await client.run(run.id)
        assert ended.state == run_service_pb2.RUN_STATE_COMPLETED
        assert ended.attempt > 1
        log = await client.log(agent.default_conversation_id)
    assert dialogue(log) == [
        ("user", "before"),
        ("assistant", "You said: before"),
        ("user", text),
        ("assistant", f"You said: {text}"),
        ("user", "after"),
        ("assistant", "You said: after"),
    ]
