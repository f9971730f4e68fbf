"""Many clients at once: on agents of their own, on one conversation, on one block."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

import grpc
import pytest

from e2e.edge.answers import ask
from e2e.edge.conftest import Store
from faults.live import Client, Live, ModelThread, Turn, dialogue, inputs, slowly, text_of
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.core_memory.v1 import block_service_pb2
from strata.api.gateway.v1 import run_service_pb2

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLIENTS = 30


async def test_thirty_clients_on_thirty_agents_lose_nothing(live: Live, model: ModelThread) -> None:
    await _talk_for(6.0, live, model)


@pytest.mark.slow
async def test_thirty_clients_on_thirty_agents_lose_nothing_in_a_minute(
    live: Live, model: ModelThread
) -> None:
    await _talk_for(60.0, live, model)


async def _talk_for(seconds: float, live: Live, model: ModelThread) -> None:
    until = time.monotonic() + seconds
    asked = len(model.server.requests)
    async with asyncio.TaskGroup() as group:
        talks = [group.create_task(_talk(live, number, until)) for number in range(CLIENTS)]
    turns = sum(talk.result() for talk in talks)
    assert turns >= 2 * CLIENTS
    assert len(model.server.requests) - asked >= turns
    assert model.server.violations == []


async def _talk(live: Live, number: int, until: float) -> int:
    """Sends messages over a separate connection; returns the number of turns."""
    texts: list[str] = []
    async with live.client() as client:
        agent = await client.new_agent()
        while time.monotonic() < until or len(texts) < 2:
            text = _text(number, len(texts))
            turn = await client.send(agent.id, text)
            _check(turn, text)
            texts.append(text)
        log = await client.log(agent.default_conversation_id)
    _check_log(log, texts)
    return len(texts)


def _text(number: int, turn: int) -> str:
    fact = f"client {number} turn {turn}"
    match turn % 7:
        case 3:
            return f"remember {fact}"
        case 5:
            return f"recall {fact}"
        case _:
            return fact


def _check(turn: Turn, text: str) -> None:
    assert turn.ended_well, turn.finished
    assert turn.durable == list(range(1, len(turn.durable) + 1))
    if not text.startswith(("remember", "recall")):
        assert turn.reply == f"You said: {text}"
    else:
        assert turn.finished.step_count == 2
        assert turn.reply.startswith("Done.")


def _check_log(log: Sequence[message_pb2.Message], texts: Sequence[str]) -> None:
    assert len({message.id for message in log}) == len(log)
    spoken = dialogue(log)
    assert [role for role, _ in spoken] == ["user", "assistant"] * len(texts)
    assert [text for role, text in spoken if role == "user"] == list(texts)
    # Pairs are whole: each reply with calls is followed by one message with all its returns.
    for index, message in enumerate(log):
        calls = [p.tool_call.tool_call_id for p in message.parts if p.HasField("tool_call")]
        if calls:
            returns = [p.tool_return.tool_call_id for p in log[index + 1].parts]
            assert returns == calls
    sequences = [message.sequence for message in log]
    assert sequences == list(range(sequences[0], sequences[0] + len(log)))


async def test_clients_that_queue_on_one_conversation_are_answered_one_by_one(live: Live) -> None:
    async with live.client() as first:
        agent = await first.new_agent()

        sent: dict[str, float] = {}
        accepted: dict[str, float] = {}

        async def talk(number: int) -> list[str]:
            async with live.client() as client:
                runs = []
                for turn in range(3):
                    text = f"client {number} says {turn}"
                    request = run_service_pb2.SendMessageRequest(
                        agent_id=agent.id, messages=inputs(text)
                    )
                    began = time.monotonic()
                    call = client.runs.SendMessage(request, **client.call)
                    await call.initial_metadata()
                    sent_at = time.monotonic()
                    answered = Turn([response.event async for response in call])
                    _check(answered, text)
                    runs.append(answered.run_id)
                    sent[answered.run_id], accepted[answered.run_id] = began, sent_at
            return runs

        async with asyncio.TaskGroup() as group:
            talks = [group.create_task(talk(number)) for number in range(8)]
        runs = [await first.run(run_id) for talk in talks for run_id in talk.result()]
        log = await first.log(agent.default_conversation_id)

    _check_log(log, [text for role, text in dialogue(log) if role == "user"])
    assert len(dialogue(log)) == 2 * 24
    # The log shows in which order they were executed: never two at once, and none before another
    # one that was accepted before it was sent.
    by_id = {run.id: run for run in runs}
    done = [by_id[m.run_id] for m in log if m.role == message_pb2.ROLE_USER]
    for run, following in itertools.pairwise(done):
        assert run.finish_time.ToNanoseconds() <= following.start_time.ToNanoseconds()
    for run, later in itertools.combinations(done, 2):
        assert sent[run.id] < accepted[later.id]


async def test_on_busy_decides_whether_a_busy_conversation_refuses_or_interrupts(
    client: Client, store: Store
) -> None:
    agent = await client.new_agent()
    text = slowly()
    slow = asyncio.create_task(client.send(agent.id, text))
    active = await _active_run(client, agent.id)

    request = run_service_pb2.SendMessageRequest(
        agent_id=agent.id, messages=inputs("now"), on_busy=run_service_pb2.ON_BUSY_REJECT
    )
    path = "/strata.api.gateway.v1.RunService/SendMessage"
    refused = await ask(client, path, request.SerializeToString(), client.metadata)
    assert refused.pair == ("ABORTED", "CONVERSATION_BUSY")
    assert refused.metadata["active_run_id"] == active
    assert not slow.done()

    interrupting = await client.send(agent.id, "instead", on_busy=run_service_pb2.ON_BUSY_INTERRUPT)
    assert interrupting.ended_well
    interrupted = await slow
    assert interrupted.finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    log = await client.log(agent.default_conversation_id)
    users = [text_of(m) for m in log if m.role == message_pb2.ROLE_USER]
    assert users == [text, "instead"]
    accepted = await client.send(agent.id, "and now", on_busy=run_service_pb2.ON_BUSY_REJECT)
    assert accepted.ended_well


async def _active_run(client: Client, agent_id: str) -> str:
    """Waits until a run of the agent has started; returns its id."""
    request = run_service_pb2.ListRunsRequest(
        agent_id=agent_id, states=[run_service_pb2.RUN_STATE_RUNNING]
    )
    while True:
        response = await client.runs.ListRuns(request, **client.call)
        if response.runs and response.runs[0].last_sequence:
            return str(response.runs[0].id)
        await asyncio.sleep(0.02)


async def test_the_same_request_from_many_clients_runs_once(live: Live, model: ModelThread) -> None:
    async with live.client() as first:
        agent = await first.new_agent()

        async def send() -> Turn:
            async with live.client() as client:
                return await client.send(agent.id, "only once", request_id="the-same")

        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(send()) for _ in range(10)]
        turns = [task.result() for task in sent]
        log = await first.log(agent.default_conversation_id)
        with pytest.raises(grpc.aio.AioRpcError) as reused:
            await first.send(agent.id, "something else", request_id="the-same")
    assert reused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert len({turn.run_id for turn in turns}) == 1
    assert {tuple(turn.durable) for turn in turns} == {tuple(turns[0].durable)}
    assert dialogue(log) == [("user", "only once"), ("assistant", "You said: only once")]
    assert model.asked("only once") == 1


async def test_concurrent_edits_of_a_shared_block_are_all_kept(live: Live) -> None:
    async with live.client() as first:
        made = await first.blocks.CreateBlock(
            block_service_pb2.CreateBlockRequest(
                block=block_service_pb2.NewBlock(label="human", value="Facts:")
            ),
            **first.call,
        )

        async def talk(number: int) -> None:
            async with live.client() as client:
                agent = await client.new_agent(block_ids=[made.block.id])
                for turn in range(3):
                    text = f"remember fact {number}.{turn}."
                    _check(await client.send(agent.id, text), text)

        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(talk(number))
        block = await first.blocks.GetBlock(
            block_service_pb2.GetBlockRequest(block_id=made.block.id), **first.call
        )
    lines = block.block.value.splitlines()
    assert sorted(lines) == sorted(
        ["Facts:", *(f"fact {number}.{turn}." for number in range(8) for turn in range(3))]
    )
    assert block.block.revision == made.block.revision + 24


async def test_clients_that_disconnect_during_a_reply_do_not_affect_others(
    live: Live, client: Client
) -> None:
    agents = [await client.new_agent() for _ in range(CLIENTS)]
    texts = {agent.id: f"message {number}" for number, agent in enumerate(agents)}

    async def send_and_leave(agent_id: str, after: int) -> None:
        async with live.client() as leaving:
            request = run_service_pb2.SendMessageRequest(
                agent_id=agent_id, messages=inputs(texts[agent_id])
            )
            call = leaving.runs.SendMessage(request, **leaving.call)
            await call.initial_metadata()
            for _ in range(after):
                await call.read()
            call.cancel()

    async with asyncio.TaskGroup() as group:
        for number, agent in enumerate(agents):
            group.create_task(send_and_leave(agent.id, number % 5))
    for agent in agents:
        # The run continued without its client; the next message waits for its end.
        _check(await client.send(agent.id, "still there"), "still there")
        log = await client.log(agent.default_conversation_id)
        _check_log(log, [texts[agent.id], "still there"])
        assert dialogue(log)[1] == ("assistant", f"You said: {texts[agent.id]}")
