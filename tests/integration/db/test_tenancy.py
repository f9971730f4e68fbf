"""Row-level security as the roles of a service meet it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared import context
from strata.shared.context import Caller
from strata.shared.db import Database, MissingTenantError, sql

if TYPE_CHECKING:
    from conftest import ServiceDatabase

INSERT = sql("INSERT INTO example.notes (project_id, note_id, body) VALUES (:p, :n, :b)")
BODIES = sql("SELECT body FROM example.notes ORDER BY note_id")


async def _add(database: Database, project: str, note: str, body: str) -> None:
    async with database.transaction(project_id=project) as connection:
        await connection.execute(INSERT, {"p": project, "n": note, "b": body})


async def _bodies(database: Database, project: str) -> list[str]:
    async with database.transaction(project_id=project, read_only=True) as connection:
        return list((await connection.execute(BODIES)).scalars())


async def test_a_project_sees_its_own_rows_only(database: Database) -> None:
    await _add(database, "project-a", "1", "of a")
    await _add(database, "project-b", "1", "of b")

    assert await _bodies(database, "project-a") == ["of a"]
    assert await _bodies(database, "project-b") == ["of b"]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO example.notes (project_id, note_id, body) VALUES ('project-b', '9', 'x')",
        "UPDATE example.notes SET project_id = 'project-b'",
    ],
)
async def test_a_row_cannot_be_given_to_another_project(database: Database, statement: str) -> None:
    await _add(database, "project-a", "1", "of a")

    with pytest.raises(asyncpg.PostgresError) as refused:
        async with database.transaction(project_id="project-a") as connection:
            await connection.execute(sql(statement))

    assert isinstance(refused.value, asyncpg.InsufficientPrivilegeError)
    assert await _bodies(database, "project-a") == ["of a"]
    assert await _bodies(database, "project-b") == []


async def test_rows_of_another_project_cannot_be_changed_or_deleted(database: Database) -> None:
    await _add(database, "project-b", "1", "of b")

    async with database.transaction(project_id="project-a") as connection:
        for statement in ("UPDATE example.notes SET body = 'x'", "DELETE FROM example.notes"):
            assert (await connection.execute(sql(statement))).rowcount == 0

    assert await _bodies(database, "project-b") == ["of b"]


async def test_a_transaction_without_a_project_is_refused(database: Database) -> None:
    with pytest.raises(MissingTenantError) as missing:
        async with database.transaction():
            pass

    assert missing.value.reason is Reason.TENANT_MISSING
    assert database.statistics.transactions == 0


@pytest.mark.parametrize("project", ["", "a'b", "a b", "x" * 129, "a\n", "a\0"])
async def test_a_project_id_that_could_be_sql_is_refused(database: Database, project: str) -> None:
    with pytest.raises(MissingTenantError):
        async with database.transaction(project_id=project):
            pass


async def test_the_project_is_that_of_the_served_call(database: Database) -> None:
    await _add(database, "project-a", "1", "of a")
    caller = context.Caller("organization-1", "project-a", "key-1")

    with context.use(context.RequestContext(caller=caller)):
        async with database.transaction() as connection:
            assert list((await connection.execute(BODIES)).scalars()) == ["of a"]


async def test_without_a_project_no_row_can_be_read_or_written(database: Database) -> None:
    await _add(database, "project-a", "1", "of a")

    async with database.system_transaction() as connection:
        assert list((await connection.execute(BODIES)).scalars()) == []
    with pytest.raises(asyncpg.PostgresError):
        async with database.system_transaction() as connection:
            await connection.execute(INSERT, {"p": "project-a", "n": "2", "b": "x"})


async def test_the_project_does_not_outlive_its_transaction(database: Database) -> None:
    await _add(database, "project-a", "1", "of a")
    for _ in range(8):  # more often than there are connections
        async with database.system_transaction() as connection:
            assert list((await connection.execute(BODIES)).scalars()) == []


async def test_policies_apply_to_the_owner_too(urls: ServiceDatabase, database: Database) -> None:
    await _add(database, "project-a", "1", "of a")
    admin = await asyncpg.connect(urls.admin_url)
    try:
        await admin.execute("SET ROLE strata_example_owner")
        assert await admin.fetchval("SELECT count(*) FROM example.notes") == 0
    finally:
        await admin.close()


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE example.notes DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE example.notes NO FORCE ROW LEVEL SECURITY",
        "DROP POLICY tenant ON example.notes",
        "TRUNCATE example.notes",
        "SET ROLE strata_example_owner",
        "CREATE TABLE example.mine (x int)",
        "UPDATE example.schema_version SET version_num = '9999'",
    ],
)
async def test_the_service_cannot_lift_the_policy(database: Database, statement: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        async with database.transaction(project_id="project-a") as connection:
            await connection.execute(sql(statement))

    assert isinstance(refused.value, asyncpg.InsufficientPrivilegeError)


async def test_switching_row_security_off_is_an_error(database: Database) -> None:
    await _add(database, "project-b", "1", "of b")
    async with database.transaction(project_id="project-a") as connection:
        await connection.execute(sql("SET LOCAL row_security = off"))
        with pytest.raises(asyncpg.PostgresError, match="row-level security"):
            async with connection.undone():
                await connection.execute(BODIES)


async def test_the_worker_reads_granted_columns_of_every_project(
    database: Database, worker: Database
) -> None:
    await _add(database, "project-a", "1", "of a")
    await _add(database, "project-b", "1", "of b")

    async with worker.system_transaction() as connection:
        rows = await connection.execute(sql("SELECT project_id, note_id FROM example.notes"))
        assert sorted(map(tuple, rows)) == [("project-a", "1"), ("project-b", "1")]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT body FROM example.notes",
        "DELETE FROM example.notes",
        "INSERT INTO example.notes (project_id, note_id, body) VALUES ('p', '1', 'x')",
        "SELECT * FROM example.regions",
    ],
)
async def test_the_worker_role_has_no_other_privileges(worker: Database, statement: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        async with worker.system_transaction() as connection:
            await connection.execute(sql(statement))

    assert isinstance(refused.value, asyncpg.InsufficientPrivilegeError)


async def test_interleaved_projects_on_shared_connections_see_their_own_rows_only(
    database: Database, pool_size: int
) -> None:
    projects = [f"project-{number}" for number in range(20)]

    async def work(project: str) -> list[str]:
        await _add(database, project, "1", project)
        await asyncio.sleep(0)
        return await _bodies(database, project)

    seen = await asyncio.gather(*(work(project) for project in projects))

    assert seen == [[project] for project in projects]
    assert database.statistics.connections <= pool_size


async def test_a_project_of_another_partition_is_refused(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, partition="p1")
    caller = Caller("org-1", "project-a", "key-1", partition="p2")
    try:
        with context.use(context.RequestContext(caller=caller)):
            for project_id in (None, "project-a"):
                with pytest.raises(FailedPreconditionError) as refused:
                    async with database.transaction(project_id=project_id):
                        pass
                assert refused.value.reason is Reason.PARTITION_NOT_CONFIGURED
            with pytest.raises(FailedPreconditionError):
                await database.execute(
                    sql("SELECT body FROM example.notes WHERE project_id = :project"), {}
                )
            # Work for other projects, and tables without a partition, are not restricted to the
            # caller.
            assert await _bodies(database, "project-b") == []
            assert await _bodies(database.of_any_partition(), "project-a") == []
        assert database.statistics.transactions == 2
    finally:
        await database.close()
