"""The process that migrates the schemas of a local Strata."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from strata.protocol.errors import (
    FailedPreconditionError,
    InternalError,
    Reason,
    UnavailableError,
)
from strata.recall.migrations import MIGRATIONS
from strata.standalone.compose.migration import migration_process

if TYPE_CHECKING:
    from conftest import Databases


async def upgrade(url: str, databases: Databases, migrations: Any = MIGRATIONS) -> None:
    async with migration_process() as process:
        await process.upgrade(url, [(migrations, databases.passwords)], "WARNING", "console")


async def test_schemas_are_migrated_and_errors_have_their_reason(databases: Databases) -> None:
    url = databases.url(await databases.create())
    await upgrade(url, databases)
    assert await MIGRATIONS.version(url) == MIGRATIONS.head
    await upgrade(url, databases)

    owner = await asyncpg.connect(url)
    await owner.execute("UPDATE recall.schema_version SET version_num = '9999'")
    await owner.close()
    with pytest.raises(FailedPreconditionError, match="newer release") as refused:
        await upgrade(url, databases)
    assert refused.value.reason is Reason.SCHEMA_OUTDATED
    assert dict(refused.value.metadata) == {
        "service": "recall",
        "found": "9999",
        "needed": MIGRATIONS.head,
    }


async def test_a_database_that_cannot_be_reached_is_unavailable(databases: Databases) -> None:
    with pytest.raises(UnavailableError):
        await upgrade("postgresql://nobody:x@127.0.0.1:1/none", databases)


async def test_an_unexpected_failure_is_an_error_and_its_trace_is_written(
    databases: Databases, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = replace(MIGRATIONS, package="strata.recall.no_such_migrations")
    with pytest.raises(InternalError, match="ended with code 1"):
        await upgrade(databases.url(await databases.create()), databases, missing)
    assert "no_such_migrations" in capfd.readouterr().err


async def test_a_cancelled_start_leaves_no_process(databases: Databases) -> None:
    url = databases.url(await databases.create())
    # Migrations wait for this lock.
    owner = await asyncpg.connect(url)
    await owner.execute("SELECT pg_advisory_lock(hashtext('strata.migrate'))")
    pids: list[int] = []

    async def migrate() -> None:
        async with migration_process() as process:
            pids.append(process._process.pid)
            await process.upgrade(url, [(MIGRATIONS, databases.passwords)], "WARNING", "console")

    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'strata-migrate'"
    waiting += " AND datname = current_database()"
    task = asyncio.create_task(migrate())
    while not await owner.fetchval(waiting):
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    await owner.close()
    assert await MIGRATIONS.version(url) is None
