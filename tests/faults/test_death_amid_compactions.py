"""Rooms are killed while windows are compacted; no window names a missing message."""

from __future__ import annotations

import asyncio
import random

import asyncpg
import psutil
import pytest

from faults.live import Live, alive
from faults.load import further, talking
from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.common.v1 import message_pb2

VICTIMS = ("agent_loop", "recall")
_WINDOWS = "SELECT conversation_id, message_ids, message_count FROM recall.windows"
_NAMED = """
    SELECT m.id, m.sequence, m.role, m.parts FROM recall.messages m
    WHERE m.id = ANY($1::text[]) ORDER BY m.sequence
"""


def text(number: int, turn: int) -> str:
    """Long things to say in a tiny window: every few turns it is compacted."""
    return f"talk {number} turn {turn} " + "lorem ipsum " * 60


def process_of(live: Live, room: str) -> psutil.Process | None:
    """The process that runs a room at the moment."""
    for process in alive(live.family()):
        try:
            if f"strata.{room}.main" in process.cmdline():
                return process
        except psutil.NoSuchProcess:
            continue
    return None


async def killed_amid_compactions(live: Live, kills: int) -> None:
    chance = random.Random(4)
    model = agent_service_pb2.ModelConfig(context_window=4096)
    async with talking(live, 3, text, model=model) as talks:
        for number in range(kills):
            await asyncio.sleep(chance.uniform(0.3, 1.5))
            process = process_of(live, VICTIMS[number % len(VICTIMS)])
            if process is not None:
                process.kill()
            await further(talks, 2)
        conversations = [talk.conversation_id for talk in talks]
    summaries = 0
    async with live.client() as client:
        for conversation in conversations:
            roles = [message.role for message in await client.log(conversation)]
            summaries += roles.count(message_pb2.ROLE_SUMMARY)
    assert summaries >= len(conversations)
    await assert_windows_are_sound(live)


async def assert_windows_are_sound(live: Live) -> None:
    """Every message that a window names is there, and the summary stands for all the others."""
    connection = await asyncpg.connect(live.admin_url)
    try:
        for row in await connection.fetch(_WINDOWS):
            named = await connection.fetch(_NAMED, row["message_ids"])
            assert len(named) == len(set(row["message_ids"])) == len(row["message_ids"])
            assert [each["role"] for each in named].count("summary") <= 1
            body = [each["id"] for each in named if each["role"] not in {"system", "summary"}]
            front = [each["id"] for each in named if each["role"] in {"system", "summary"}]
            assert row["message_ids"] == [*front, *body], "the summary stands before the rest"
    finally:
        await connection.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("live", [True], ids=["split"], indirect=True)
async def test_no_window_names_a_missing_message_after_two_deaths(live: Live) -> None:
    await killed_amid_compactions(live, 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("live", [True], ids=["split"], indirect=True)
async def test_no_window_names_a_missing_message_after_a_hundred_deaths(live: Live) -> None:
    await killed_amid_compactions(live, 100)
