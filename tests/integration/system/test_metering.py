"""The meter: it counts like the database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from metering import Meter, SqlMeter
from strata.recall.migrations import MIGRATIONS
from strata.shared.context import RequestContext, use
from strata.shared.db import Database
from strata.shared.telemetry import Telemetry

pytestmark = pytest.mark.asyncio(loop_scope="session")


_SELECT_ALONE = text("SELECT message_ids FROM recall.windows WHERE project_id = :project")
_WRITE_ALONE = text("DELETE FROM recall.windows WHERE project_id = :project")


async def _fail(database: Database) -> None:
    async with database.transaction(project_id="p") as connection:
        await connection.execute(text("SELECT 4"))
        raise ZeroDivisionError


async def test_meter_counts_like_the_database(databases: Any) -> None:
    urls = await databases.of(MIGRATIONS)
    sql = SqlMeter()
    with sql.on():
        database = Database(urls.service_url, application_name="strata-example")
        before = database.statistics.round_trips, database.statistics.rollbacks
        with use(RequestContext(request_id="request-1")):
            async with Meter(sql, Telemetry()).measure() as cost:
                async with database.transaction(project_id="p") as connection:
                    await connection.execute(text("SELECT 1"))
                    await connection.execute(text("SELECT 2"))
                async with database.transaction(project_id="p", read_only=True) as connection:
                    await connection.execute(text("SELECT 3"))
                await database.execute(_SELECT_ALONE, {"project": "p"}, project_id="p")
                await database.execute(_WRITE_ALONE, {"project": "p"}, project_id="p")
                with pytest.raises(ZeroDivisionError):
                    await _fail(database)
        after = database.statistics.round_trips, database.statistics.rollbacks
        await database.close()

    # Services of other tests may run in this process, and finish the work of their tests.
    counted = [sql for service, sql in cost.statements if service == "example"]
    assert [sql for sql in counted if "recall" not in sql] == [f"SELECT {n}" for n in (1, 2, 3, 4)]
    assert len(counted) == 6
    assert cost.control["example"] == 5, "three BEGIN and two COMMIT"
    assert (cost.commits["example"], cost.reads["example"]) == (2, 2)
    round_trips = after[0] - before[0] - (after[1] - before[1])
    assert len(counted) + cost.control["example"] == round_trips


async def test_background_work_is_counted_separately(databases: Any) -> None:
    urls = await databases.of(MIGRATIONS)
    sql = SqlMeter()
    with sql.on():
        database = Database(urls.service_url, application_name="strata-example")
        async with (
            Meter(sql, Telemetry()).measure() as cost,
            database.transaction(project_id="p") as connection,
        ):
            await connection.execute(text("SELECT 1"))
        await database.close()

    # As above: the workers of other services continue.
    mine = [statement for service, statement in cost.background if service == "example"]
    assert mine == ["SELECT 1"]
    assert "example" not in {service for service, _ in cost.statements}
    assert cost.commits["example"] == 0
