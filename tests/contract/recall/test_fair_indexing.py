"""Projects take turns in indexing."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from callers import as_project
from plans import with_values
from recall_conversations import START, Writer
from strata.recall.store import PendingMessages
from strata.shared import context
from strata.shared.db import Database, sql
from strata.shared.ids import new_id


@pytest.fixture
def pending(database: Database, worker: Database) -> PendingMessages:
    return PendingMessages(database, worker)


async def stored_ids(database: Database, project: str, days: range) -> list[str]:
    """Stores messages of these days; returns their ids."""
    with context.use(as_project(project)):
        writer = Writer(database, new_id("agent"))
        await writer.open()
        return [
            (await writer.say(f"Day {day}.", at=START + timedelta(days=day))).id for day in days
        ]


async def test_a_message_of_a_small_project_is_in_the_first_batch(
    database: Database, pending: PendingMessages
) -> None:
    before = await stored_ids(database, "project-a", range(30))
    [single] = await stored_ids(database, "project-b", range(30, 31))
    after = await stored_ids(database, "project-a", range(31, 60))
    batch = (await pending.find(8)).ids
    assert single in batch["project-b"]
    assert sum(len(ids) for ids in batch.values()) == 8
    assert {*batch["project-a"]} & {*before, *after}


async def test_every_project_is_served_in_turn_when_a_batch_cannot_hold_all(
    database: Database, pending: PendingMessages
) -> None:
    for number in range(5):
        await stored_ids(database, f"project-{number}", range(3))
    served = [project for _ in range(3) for project in (await pending.find(4)).ids]
    assert sorted(served) == [f"project-{number}" for number in range(5)]


async def test_a_batch_beside_a_long_backlog_reads_few_rows(
    urls: Any, database: Database, worker: Database, pending: PendingMessages
) -> None:
    [first] = await stored_ids(database, "project-a", range(1))
    await stored_ids(database, "project-b", range(1))
    async with database.transaction(project_id="project-a") as connection:
        columns = await connection.execute(
            sql(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 'recall'"
                " AND table_name = 'messages' AND is_generated = 'NEVER'"
            )
        )
        changed = {
            "id": "'message-' || n",
            "sequence": "1000 + n",
            "create_time": "create_time + n * interval '1 s'",
        }
        values = {name: changed.get(name, name) for (name,) in columns}
        await connection.execute(
            sql(
                f"INSERT INTO recall.messages ({', '.join(values)})"
                f" SELECT {', '.join(values.values())}"
                " FROM recall.messages, generate_series(1, 5000) n WHERE id = :first"
            ),
            {"first": first},
        )
    admin = await asyncpg.connect(urls.admin_url)
    await admin.execute("ANALYZE recall.messages")
    await admin.close()
    bound = {"after": "''", "projects": "16", "limit": "64", "oldest": "32", "newest": "32"}
    statement = with_values(pending._in_turn._statement, bound)
    async with worker.system_transaction(read_only=True) as connection:
        plan = [row[0] for row in await connection.driver.fetch("EXPLAIN ANALYZE " + statement)]
    reads = [re.search(r" on messages.*actual .*rows=(\d+).* loops=(\d+)", line) for line in plan]
    rows = sum(int(read[1]) * int(read[2]) for read in reads if read)
    assert 64 <= rows < 200, "\n".join(plan)
    assert not [line for line in plan if "Rows Removed by Filter: 5" in line], "\n".join(plan)
