"""Statements that are a transaction of their own: their tenant, atomicity, and failures."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import asyncpg
import pytest
from asyncpg.connection import LoggedQuery

from polling import eventually
from sql_queries import fetch_value
from strata.protocol.errors import DeadlineExceededError, UnavailableError
from strata.shared.db import Database, MissingTenantError, sql

if TYPE_CHECKING:
    from conftest import ServiceDatabase

P, Q = "project-a", "project-b"
INSERT = sql(
    "INSERT INTO example.notes (project_id, note_id, body)"
    " SELECT :project, note_id, '' FROM unnest(CAST(:ids AS text[])) AS new (note_id)"
    " RETURNING note_id"
)
ALL_NOTES = sql("SELECT note_id FROM example.notes ORDER BY note_id")
NOTES = sql("SELECT note_id FROM example.notes WHERE CAST(:project AS text) <> '' ORDER BY note_id")
END_OWN_SESSION = sql("SELECT pg_terminate_backend(pg_backend_pid()), :project")
# The server then closes the connection after a tenth of a second without a statement. With such a
# limit from the beginning, it could do so before the first statement.
CLOSED_WHEN_UNUSED = sql(
    "SELECT pg_sleep(0.2), set_config('idle_session_timeout', '100', false), :project"
)


async def insert(database: Database, project: str, *ids: str) -> list[str]:
    values = {"project": project, "ids": list(ids)}
    return list((await database.execute(INSERT, values, project_id=project)).scalars())


async def notes(database: Database, project: str) -> list[str]:
    result = await database.execute(NOTES, {"project": project}, project_id=project)
    return list(result.scalars())


async def test_a_project_sees_only_its_own_rows_on_a_shared_connection(
    urls: ServiceDatabase,
) -> None:
    database = Database(urls.service_url, pool_size=1)
    try:
        assert await insert(database, P, "1", "2") == ["1", "2"]
        assert await insert(database, Q, "3") == ["3"]
        # More often than PostgreSQL plans a statement for its values before it keeps one plan.
        for _ in range(12):
            assert await notes(database, P) == ["1", "2"]
            assert await notes(database, Q) == ["3"]
    finally:
        await database.close()


async def test_concurrent_statements_see_their_own_projects(database: Database) -> None:
    projects = [f"project-{number}" for number in range(20)]
    await asyncio.gather(*(insert(database, project, project) for project in projects))

    results = await asyncio.gather(*(notes(database, project) for project in projects))

    assert results == [[project] for project in projects]


async def test_the_project_is_reset_after_its_statement(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, pool_size=1)
    try:
        await insert(database, P, "1")
        assert await database.system_query(ALL_NOTES) == []
        async with database.transaction(project_id=Q) as connection:
            assert (await connection.execute(ALL_NOTES)).all() == []
        with pytest.raises(asyncpg.PostgresError):
            await database.execute(
                sql("SELECT 1 / 0 WHERE :project <> ''"), {"project": P}, project_id=P
            )
        assert await database.system_query(ALL_NOTES) == []
    finally:
        await database.close()


async def test_row_cannot_be_given_to_another_project(database: Database) -> None:
    statement = sql(
        "INSERT INTO example.notes (project_id, note_id, body) SELECT 'project-b', :project, ''"
    )
    with pytest.raises(asyncpg.PostgresError) as refused:
        await database.execute(statement, {"project": P}, project_id=P)
    assert isinstance(refused.value, asyncpg.InsufficientPrivilegeError)


async def test_the_tenant_is_the_project_of_the_caller_whatever_the_values(
    database: Database,
) -> None:
    await insert(database, P, "1")
    result = await database.execute(NOTES, {"project": Q}, project_id=P)
    assert list(result.scalars()) == ["1"]


async def test_statement_without_a_project_is_refused(database: Database) -> None:
    with pytest.raises(MissingTenantError):
        await database.execute(NOTES, {"project": P})
    with pytest.raises(MissingTenantError):
        await database.execute(NOTES, {"project": "a'b"}, project_id="a'b")
    with pytest.raises(ValueError, match="no parameter 'project'"):
        await database.execute(ALL_NOTES, {"project": P}, project_id=P)
    assert database.statistics.statements == 0


async def test_a_statement_takes_effect_as_a_whole_or_not_at_all(database: Database) -> None:
    await insert(database, P, "2")
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await insert(database, P, "1", "2")
    assert await notes(database, P) == ["2"]


async def test_a_single_statement_is_sent_as_one_message(urls: ServiceDatabase) -> None:
    queries: list[str] = []

    def record(logged: LoggedQuery) -> None:
        queries.append(logged.query)

    database = Database(urls.service_url, pool_size=1)
    try:
        await notes(database, P)
        async with database.system_transaction() as connection:
            connection.driver.add_query_logger(record)
        await asyncio.sleep(0.01)  # the driver logs in a later iteration of the event loop
        queries.clear()
        await notes(database, Q)
        await asyncio.sleep(0.01)
    finally:
        await database.close()
    # The driver logs everything except prepared statements, such as BEGIN and its queries of the
    # catalogue.
    assert queries == []
    # Two more are BEGIN and COMMIT of the transaction above.
    assert (database.statistics.round_trips, database.statistics.alone) == (2 + 2, 2)


async def test_statements_are_prepared_again_after_a_change_of_the_schema(
    urls: ServiceDatabase,
) -> None:
    database = Database(urls.service_url, pool_size=2)
    owner = await asyncpg.connect(urls.admin_url)
    all_of = sql("SELECT * FROM example.notes WHERE project_id = :project")
    add = sql("INSERT INTO example.notes SELECT :project, :id, '' RETURNING *")
    try:
        for number in range(2):
            values = {"project": P, "id": str(number)}
            assert (await database.execute(add, values, project_id=P)).rowcount == 1
            async with database.transaction(project_id=P) as connection:
                assert (await connection.execute(all_of, {"project": P})).rowcount == number + 1
                # On another connection.
                rows = await database.execute(all_of, {"project": P}, project_id=P)
                assert len(rows.all()) == number + 1
            await owner.execute(f"ALTER TABLE example.notes ADD added_{number} integer DEFAULT 7")

        row = (await database.execute(all_of, {"project": P}, project_id=P)).all()[0]
        assert (row.added_0, row.added_1) == (7, 7)
        assert database.statistics.connections == 2
    finally:
        await owner.close()
        await database.close()


async def test_prepared_statements_of_a_connection_are_bounded(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, pool_size=1, prepared_statements=3)
    count = sql(
        "SELECT count(*) AS total FROM pg_prepared_statements WHERE statement LIKE '% AS number'"
    )
    try:
        for number in range(10):
            rows = await database.system_query(sql(f"SELECT {number} AS number"))
            assert rows[0].number == number
        assert (await database.system_query(count))[0].total <= 4
    finally:
        await database.close()


async def test_values_that_are_missing_are_an_error_and_others_are_ignored(
    database: Database,
) -> None:
    await database.execute(NOTES, {"project": P, "other": 1}, project_id=P)
    with pytest.raises(ValueError, match="'ids'"):
        await database.execute(INSERT, {"project": P}, project_id=P)


async def test_poolers_without_prepared_statements_get_a_transaction(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, pool_size=1, prepared_statements=0)
    try:
        await insert(database, P, "1")
        assert await notes(database, P) == ["1"]
        assert await notes(database, Q) == []
        assert (await database.system_query(sql("SELECT 1 AS one")))[0].one == 1
        statistics = database.statistics
        assert (statistics.alone, statistics.commits) == (0, 4)
    finally:
        await database.close()


async def test_statement_that_lost_its_connection_is_repeated_only_if_it_reads(
    urls: ServiceDatabase,
) -> None:
    for read_only, connections in ((False, 1), (True, 2)):
        database = Database(urls.service_url, pool_size=1)
        try:
            with pytest.raises(UnavailableError):
                await database.execute(
                    END_OWN_SESSION, {"project": P}, project_id=P, read_only=read_only
                )
            assert database.statistics.connections == connections
            assert await insert(database, P, f"{read_only}") == [f"{read_only}"]
        finally:
            await database.close()


async def test_connection_that_was_closed_in_the_pool_is_replaced(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, pool_size=1)
    try:
        for number in range(3):
            await insert(database, P, str(number))
            await database.execute(CLOSED_WHEN_UNUSED, {"project": P}, project_id=P)
            await eventually(lambda: _has_no_session(urls.admin_url))
        assert await notes(database, P) == ["0", "1", "2"]
    finally:
        await database.close()


@pytest.mark.parametrize("alone", [True, False])
async def test_repeat_uses_a_new_connection_when_all_in_the_pool_were_closed(
    urls: ServiceDatabase, alone: bool
) -> None:
    database = Database(urls.service_url, pool_size=4, share=1.0)
    values = {"project": P}

    def until_closed() -> None:
        asyncio.run(eventually(lambda: _has_no_session(urls.admin_url)))

    try:
        statements = (database.execute(CLOSED_WHEN_UNUSED, values, project_id=P) for _ in range(4))
        await asyncio.gather(*statements)
        assert database.statistics.connections == 4
        # Blocks the event loop, so that the driver has not yet read that the server closed them.
        watcher = threading.Thread(target=until_closed)
        watcher.start()
        watcher.join()
        if alone:
            assert await insert(database, P, "1") == ["1"]
        else:
            async with database.transaction(project_id=P) as connection:
                await connection.execute(INSERT, {"project": P, "ids": ["1"]})
        assert await notes(database, P) == ["1"]
        assert database.connections <= 4
    finally:
        await database.close()


async def _has_no_session(url: str) -> bool:
    sessions = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'strata' AND datname = current_database()"
    )
    return bool(await fetch_value(url, sessions) == 0)


async def test_a_cancelled_statement_is_ended_and_its_connection_can_be_used(
    urls: ServiceDatabase,
) -> None:
    database = Database(urls.service_url, pool_size=1)
    slow = sql(
        "INSERT INTO example.notes (project_id, note_id, body)"
        " SELECT :project, '1', '' FROM pg_sleep(30)"
    )
    try:
        statement = asyncio.create_task(database.execute(slow, {"project": P}, project_id=P))
        await asyncio.sleep(0.2)
        statement.cancel()
        with pytest.raises(asyncio.CancelledError):
            await statement
        async with asyncio.timeout(10):
            assert await notes(database, P) == []
        assert database.statistics.connections == 1
    finally:
        await database.close()


async def test_a_statement_past_its_time_limit_is_ended(urls: ServiceDatabase) -> None:
    # Long enough for the statements that must not exceed it.
    database = Database(urls.service_url, pool_size=1, statement_timeout=2.0)
    try:
        with pytest.raises(DeadlineExceededError):
            await database.execute(
                sql("SELECT pg_sleep(30), :project"), {"project": P}, project_id=P
            )
        assert await notes(database, P) == []
    finally:
        await database.close()


async def test_system_statement_has_no_tenant(database: Database) -> None:
    await insert(database, P, "1")
    changed = await database.system_execute(sql("UPDATE example.notes SET body = 'x'"))
    assert changed.rowcount == 0
