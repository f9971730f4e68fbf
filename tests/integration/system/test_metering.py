"""The meter: it counts like the database."""

from __future__ import annotations

from typing import Any

import pytest

from metering import Cost, Meter, SqlMeter
from nested_transactions import port_and_name
from strata.gateway.migrations import MIGRATIONS as GATEWAY_MIGRATIONS
from strata.gateway.project_callers import ProjectCallers
from strata.recall.migrations import MIGRATIONS
from strata.shared.auth import TokenSigner, generate_key_pair
from strata.shared.context import Caller, RequestContext, use
from strata.shared.db import Database, sql
from strata.shared.telemetry import Telemetry

pytestmark = pytest.mark.asyncio(loop_scope="session")


_SELECT_ALONE = sql("SELECT message_ids FROM recall.windows WHERE project_id = :project")
_WRITE_ALONE = sql("DELETE FROM recall.windows WHERE project_id = :project")


async def _fail(database: Database) -> None:
    async with database.transaction(project_id="p") as connection:
        await connection.execute(sql("SELECT 4"))
        raise ZeroDivisionError


async def test_meter_counts_like_the_database(databases: Any) -> None:
    urls = await databases.of(MIGRATIONS)
    sql_meter = SqlMeter([port_and_name(urls.service_url)])
    with sql_meter.on():
        database = Database(urls.service_url, application_name="strata-example")
        before = database.statistics.round_trips, database.statistics.rollbacks
        with use(RequestContext(request_id="request-1")):
            async with Meter(sql_meter, Telemetry()).measure() as cost:
                async with database.transaction(project_id="p") as connection:
                    await connection.execute(sql("SELECT 1"))
                    await connection.execute(sql("SELECT 2"))
                async with database.transaction(project_id="p", read_only=True) as connection:
                    await connection.execute(sql("SELECT 3"))
                await database.execute(_SELECT_ALONE, {"project": "p"}, project_id="p")
                await database.execute(_WRITE_ALONE, {"project": "p"}, project_id="p")
                with pytest.raises(ZeroDivisionError):
                    await _fail(database)
        after = database.statistics.round_trips, database.statistics.rollbacks
        await database.close()

    counted = [statement for _, statement in cost.statements]
    selects = [statement for statement in counted if "recall" not in statement]
    assert selects == [f"SELECT {n}" for n in (1, 2, 3, 4)]
    assert len(counted) == 6
    assert cost.control["example"] == 5, "three BEGIN and two COMMIT"
    assert (cost.commits["example"], cost.reads["example"]) == (2, 2)
    round_trips = after[0] - before[0] - (after[1] - before[1])
    assert len(counted) + cost.control["example"] == round_trips


async def cost_of_a_select(sql_meter: SqlMeter, database: Database) -> Cost:
    async with (
        Meter(sql_meter, Telemetry()).measure() as cost,
        database.transaction(project_id="p") as connection,
    ):
        await connection.execute(sql("SELECT 1"))
    return cost


async def test_background_work_is_counted_separately(databases: Any) -> None:
    urls = await databases.of(MIGRATIONS)
    sql_meter = SqlMeter([port_and_name(urls.service_url)])
    with sql_meter.on():
        database = Database(urls.service_url, application_name="strata-example")
        cost = await cost_of_a_select(sql_meter, database)
        await database.close()

    assert [statement for _, statement in cost.background] == ["SELECT 1"]
    assert not cost.statements
    assert not cost.commits


async def test_calls_that_background_work_makes_are_counted_separately(databases: Any) -> None:
    urls = await databases.of(GATEWAY_MIGRATIONS)
    sql_meter = SqlMeter([port_and_name(urls.service_url)])
    with sql_meter.on():
        database = Database(urls.service_url, application_name="strata-example")
        callers = ProjectCallers(TokenSigner(generate_key_pair()[0]), database)
        assert await callers.of("p", "deletion", ()) is None, "there is no such project"
        served = RequestContext(Caller("o", "p", "deletion"), request_id="request-1")
        with use(served):
            cost = await cost_of_a_select(sql_meter, database)
        await database.close()

    assert [statement for _, statement in cost.background] == ["SELECT 1"]
    assert cost.sql == 0
    assert not cost.commits


async def test_statements_of_other_databases_are_not_counted(databases: Any) -> None:
    urls = await databases.of(MIGRATIONS)
    sql_meter = SqlMeter([(0, "other")])
    with sql_meter.on():
        database = Database(urls.service_url, application_name="strata-example")
        with use(RequestContext(request_id="request-1")):
            async with Meter(sql_meter, Telemetry()).measure() as cost:
                async with database.transaction(project_id="p") as connection:
                    await connection.execute(sql("SELECT 1"))
                await database.execute(_SELECT_ALONE, {"project": "p"}, project_id="p")
        await database.close()

    assert cost.sql == 0
    assert not cost.commits
    assert not cost.reads
