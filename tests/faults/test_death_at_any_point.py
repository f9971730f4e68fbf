"""Services and engines are killed at random moments of insert, index, reindex and compaction.

Afterwards a search finds every acknowledged text exactly once, and every window is complete.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from faults.live import Live
from faults.surviving import writing
from faults.victims import process_of

VICTIMS = ("agent_loop", "archival", "postgres", "recall", "vectors")
_WINDOWS = """
    SELECT w.conversation_id, w.message_ids,
           (SELECT m.id FROM recall.messages m
            WHERE m.conversation_id = w.conversation_id AND m.role = 'user'
            ORDER BY m.sequence DESC LIMIT 1) AS newest
    FROM recall.windows w
"""
_NAMED = """
    SELECT m.id, m.sequence, m.role, m.parts FROM recall.messages m
    WHERE m.id = ANY($1::text[]) ORDER BY m.sequence
"""


async def killed_at_any_point(live: Live, kills: int, pause: float) -> None:
    chance = random.Random(kills)
    deaths: Counter[str] = Counter()
    began = time.monotonic()
    async with writing(live, pause) as load:
        await load.filled()
        order: list[str] = []
        while deaths.total() < kills:
            order = order or chance.sample(VICTIMS, len(VICTIMS))
            victim = order.pop()
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            process = process_of(live, victim)
            if process is None:
                order.insert(0, victim)
                continue
            process.kill()
            deaths[victim] += 1
            # Sometimes the next process is killed before this one has restarted.
            if chance.random() < 0.5:
                await load.further()
        await load.further()
    await assert_windows_are_whole(live)
    sys.stdout.write(
        f"\n{deaths.total()} deaths {dict(deaths)} in {time.monotonic() - began:.0f} s,"
        f" texts {load.counts}, {load.unanswered} turns to try again,"
        f" {load.summaries} summaries, rebuilds {dict(load.rebuilder.ends)}\n"
    )
    assert load.summaries > 0
    assert set(load.rebuilder.ends) <= {
        "REINDEX_PHASE_FINISHED",
        "REINDEX_PHASE_ROLLED_BACK",
    }, load.rebuilder.notes


async def assert_windows_are_whole(live: Live) -> None:
    """Asserts that each window has stored messages in order, tool returns and the newest input."""
    connection = await asyncpg.connect(live.admin_url)
    try:
        windows = await connection.fetch(_WINDOWS)
        assert windows
        for window in windows:
            ids = window["message_ids"]
            named = await connection.fetch(_NAMED, ids)
            assert len(named) == len(set(ids)) == len(ids), (
                "every message id exists and occurs once"
            )
            _assert_whole(ids, named, window["newest"])
    finally:
        await connection.close()


def _assert_whole(ids: Sequence[str], named: Sequence[Any], newest: str | None) -> None:
    roles = [message["role"] for message in named]
    assert roles.count("system") == 1
    assert roles.count("summary") <= 1
    front = [
        message["id"]
        for role in ("system", "summary")
        for message in named
        if message["role"] == role
    ]
    body = [message for message in named if message["role"] not in {"system", "summary"}]
    assert ids == [*front, *(message["id"] for message in body)], (
        "messages are in order, the summary is the first"
    )
    assert newest is None or newest in ids
    asked: list[str] = []
    for message in body:
        parts = json.loads(message["parts"])
        returned = [part["tool_call_id"] for part in parts if part["type"] == "tool_return"]
        assert returned == asked, (
            "each call is followed by its return, and each return follows its call"
        )
        asked = [part["tool_call_id"] for part in parts if part["type"] == "tool_call"]
    assert asked == []
    for one, other in itertools.pairwise(body):
        assert one["sequence"] < other["sequence"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("live", [True], ids=["split"], indirect=True)
async def test_every_passage_and_message_is_found_after_four_kills(live: Live) -> None:
    await killed_at_any_point(live, 4, 0.5)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
async def test_every_passage_and_message_is_found_after_two_hundred_kills(split: Live) -> None:
    await killed_at_any_point(split, 200, 1.5)
