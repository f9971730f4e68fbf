"""Processes are killed while memory agents work: each message is read once.

A run of a memory agent that succeeds has read its range of messages. Each range of a conversation
begins where the previous one ended; together the ranges cover the whole conversation. Each message
of a voice agent is either archived once or in its window.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import grpc.aio
import pytest

from doubles.script import Call, ModelCall, Reply, Step, say
from faults.live import Client, Live, ModelThread
from faults.victims import process_of
from strata.api.agent_loop.v1 import agent_service_pb2

VICTIMS = ("agent_loop", "gateway", "postgres", "agent_loop")
_RUNS = """
    SELECT id, state, kind, request_id FROM gateway.runs WHERE kind = 'SLEEPTIME' ORDER BY id
"""
_READ = """
    SELECT m.run_id, m.parts::text AS parts FROM recall.messages m
     WHERE m.role = 'user' AND m.parts::text LIKE '%Messages:%' ORDER BY m.sequence
"""
_OPEN_RUNS = """
    SELECT id FROM gateway.runs
     WHERE kind = 'SLEEPTIME' AND state IN ('QUEUED', 'RUNNING', 'CANCELLING')
"""
_ARCHIVED = "SELECT text FROM archival.passages ORDER BY id"
_IN_VIEW = """
    SELECT m.parts::text AS parts FROM recall.windows w, unnest(w.message_ids) AS shown(id)
      JOIN recall.messages m USING (id)
     WHERE m.role = 'user' AND w.agent_id = $1 ORDER BY m.sequence
"""
_MOST_IN_VIEW = 6
_MARKS = """
    SELECT last_processed_sequence, newest_sequence, failures FROM gateway.memory_agents
"""


def answer(call: ModelCall) -> Step:
    """Replies for a memory agent with the end of its edits, for other agents with the message."""
    names = {tool["function"]["name"] for tool in call.body.get("tools", ())}
    if "memory_finish_edits" in names:
        return Reply(calls=(Call("memory_finish_edits"),))
    text = [message["content"] for message in call.body["messages"] if message["role"] == "user"][
        -1
    ]
    if names == {"store_memories"}:
        last = len(re.findall(r"^\d+\. \(Older\)", text, re.MULTILINE)) - 1
        # No two calls store the same text.
        context = f"Call {random.randrange(10**9)}."
        memory = {"start_index": 0, "end_index": last, "context": context}
        return Reply(calls=(Call("store_memories", {"memories": [memory]}),))
    if "finish_rethinking_memory" in names:
        return Reply(calls=(Call("finish_rethinking_memory"),))
    if "rethink_user_memory" in names:
        return Reply(calls=(Call("rethink_user_memory", {"new_memory": "Said much."}),))
    if "send_message" in names:
        return Reply(calls=(Call("send_message", {"message": f"heard {text}"}),))
    return say(f"heard {text}")


@pytest.fixture(autouse=True)
def memory_model(model: ModelThread) -> Iterator[None]:
    with model.answering(answer):
        yield


async def say_all(client: Client, agent_id: str, texts: list[str]) -> None:
    """Sends the texts in order; repeats each until its turn has ended."""
    for text in texts:
        while True:
            try:
                if (await client.send(agent_id, text, request_id=text)).ended_well:
                    break
                raise AssertionError(f"the turn of {text} failed")
            except grpc.aio.AioRpcError as error:
                assert error.code() in {
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                }
                await asyncio.sleep(0.1)


async def fetch(live: Live, statement: str, *values: str) -> list[Any]:
    connection = await asyncpg.connect(live.admin_url)
    try:
        return list(await connection.fetch(statement, *values))
    finally:
        await connection.close()


async def all_is_read(live: Live) -> bool:
    with contextlib.suppress(OSError, asyncpg.PostgresError):
        marks = await fetch(live, _MARKS)
        # A memory run is due after each turn; the one after the last turn reads the last messages.
        return bool(marks) and all(
            mark["last_processed_sequence"] == mark["newest_sequence"] for mark in marks
        )
    return False


async def talk_through_deaths(
    live: Live, client: Client, agent_id: str, kills: int, texts: list[str]
) -> None:
    chance = random.Random(kills)
    talking = asyncio.create_task(say_all(client, agent_id, texts))
    for number in range(kills):
        await asyncio.sleep(chance.uniform(0.2, 2.0))
        process = process_of(live, VICTIMS[number % len(VICTIMS)])
        # A service that was killed before may not run again yet.
        if process is not None:
            process.kill()
    await talking


async def read_through_deaths(live: Live, kills: int, turns: int) -> None:
    texts = [f"fact-{number:03}" for number in range(turns)]
    async with live.client() as client:
        agent = await client.new_agent(enable_sleeptime=True, sleeptime_agent_frequency=1)
        await talk_through_deaths(live, client, agent.id, kills, texts)
        async with asyncio.timeout(150):
            while not await all_is_read(live):
                await asyncio.sleep(0.2)
    runs = {row["id"]: row for row in await fetch(live, _RUNS)}
    ranges = sorted(
        tuple(map(int, row["request_id"].split()[-3:-1]))
        for row in runs.values()
        if row["state"] == "COMPLETED"
    )
    assert ranges[0][0] == -1
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    read = [
        fact
        for row in await fetch(live, _READ)
        if runs[row["run_id"]]["state"] == "COMPLETED"
        for fact in re.findall(r"user: (fact-\d+)", row["parts"])
    ]
    assert read == texts


@pytest.mark.timeout(400)
@pytest.mark.parametrize("live", [True], ids=["split"], indirect=True)
async def test_no_message_is_read_twice_or_skipped_through_four_deaths(live: Live) -> None:
    await read_through_deaths(live, 4, 15)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
async def test_no_message_is_read_twice_or_skipped_through_sixty_deaths(split: Live) -> None:
    await read_through_deaths(split, 60, 300)


async def facts_in_view(live: Live, agent_id: str) -> list[str]:
    return [
        fact
        for row in await fetch(live, _IN_VIEW, agent_id)
        for fact in re.findall(r"fact-\d+", row["parts"])
    ]


async def no_run_is_open(live: Live) -> bool:
    with contextlib.suppress(OSError, asyncpg.PostgresError):
        return not await fetch(live, _OPEN_RUNS)
    return False


# A shorter form in one process is in integration/agent_loop/test_voice_memory_runs.
@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_voice_agent_archives_each_message_once_through_twelve_deaths(split: Live) -> None:
    texts = [f"fact-{number:03}" for number in range(40)]
    async with split.client() as client:
        agent = await client.new_agent(
            type=agent_service_pb2.AGENT_TYPE_VOICE_CONVO,
            enable_sleeptime=True,
            without_initial_messages=True,
            max_message_buffer_length=_MOST_IN_VIEW,
            min_message_buffer_length=3,
        )
        await talk_through_deaths(split, client, agent.id, 12, texts)
        async with asyncio.timeout(150):
            while True:
                while not await no_run_is_open(split):
                    await asyncio.sleep(0.2)
                if len(await facts_in_view(split, agent.id)) <= _MOST_IN_VIEW:
                    break
                # Only the end of a turn starts a run.
                texts.append(f"fact-{len(texts):03}")
                await say_all(client, agent.id, texts[-1:])
    passages = "\n".join(row["text"] for row in await fetch(split, _ARCHIVED))
    archived = sorted(re.findall(r"^user: (fact-\d+)", passages, re.MULTILINE))
    assert archived + await facts_in_view(split, agent.id) == texts
    assert len(archived) > len(texts) // 2
