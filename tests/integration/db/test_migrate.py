"""Migrations of a service: their results, and when they are refused."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from sql_queries import execute_all, fetch_value
from strata.protocol.errors import FailedPreconditionError, Reason, UnavailableError
from strata.shared.migrate import RolePasswords, ServiceMigrations
from strata.shared.migrate import service as migrations

if TYPE_CHECKING:
    from conftest import Databases, ServiceDatabase


@pytest.fixture
def other_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package `other_service` with no migrations yet."""
    versions = tmp_path / "other_service" / "versions"
    versions.mkdir(parents=True)
    (versions.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield versions
    sys.modules.pop("other_service", None)


def _migration(versions: Path, revision: str, before: str | None, sql: str) -> None:
    (versions / f"{revision}_step.py").write_text(
        f"from alembic import op\nrevision = {revision!r}\ndown_revision = {before!r}\n"
        f"def upgrade():\n    op.execute({sql!r})\n"
    )


def _other(untenanted: frozenset[str] = frozenset()) -> ServiceMigrations:
    return ServiceMigrations("other", "other_service", "other", untenanted)


async def test_upgrade_reaches_the_head_and_may_be_repeated(
    databases: Databases, service: ServiceMigrations
) -> None:
    url = databases.url(await databases.create())

    assert await service.version(url) is None
    await service.upgrade(f"{url}?sslmode=disable", databases.passwords)
    await service.upgrade(url, databases.passwords)

    assert await service.version(url) == service.head == "0002"
    assert await fetch_value(url, "SELECT name FROM example.regions") == "north; south"
    assert await fetch_value(url, "SELECT example.shout('a;b')") == "A;B"
    owner = "SELECT tableowner FROM pg_tables WHERE schemaname='example' AND tablename='notes'"
    assert await fetch_value(url, owner) == "strata_example_owner"


async def test_two_upgrades_at_once_both_succeed(
    databases: Databases, service: ServiceMigrations
) -> None:
    url = databases.url(await databases.create())

    await asyncio.gather(*(service.upgrade(url, databases.passwords) for _ in range(3)))

    assert await service.version(url) == service.head


async def test_two_databases_of_one_cluster_migrate_at_once(
    databases: Databases, service: ServiceMigrations
) -> None:
    urls = [databases.url(await databases.create()) for _ in range(4)]

    await asyncio.gather(*(service.upgrade(url, databases.passwords) for url in urls))

    assert [await service.version(url) for url in urls] == [service.head] * 4


async def test_a_database_that_cannot_write_now_is_reported_with_its_cause(
    databases: Databases, service: ServiceMigrations
) -> None:
    name = await databases.create()
    url = databases.url(name)
    await execute_all(url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')

    with pytest.raises(UnavailableError, match=r"example was not migrated: .*read-only"):
        await service.upgrade(url, databases.passwords)

    await execute_all(
        url,
        "SET default_transaction_read_only = off",
        f'ALTER DATABASE "{name}" RESET default_transaction_read_only',
    )
    await service.upgrade(url, databases.passwords)
    assert await service.version(url) == service.head


async def test_check_accepts_the_head_revision_for_every_role(
    urls: ServiceDatabase, service: ServiceMigrations
) -> None:
    for url in (urls.service_url, urls.worker_url, urls.admin_url):
        await service.check(url)


@pytest.mark.parametrize("revision", ["0001", "9000"])
async def test_check_refuses_a_database_behind_or_ahead(
    urls: ServiceDatabase, service: ServiceMigrations, revision: str
) -> None:
    await execute_all(
        urls.admin_url, f"UPDATE example.schema_version SET version_num = '{revision}'"
    )

    with pytest.raises(FailedPreconditionError) as refused:
        await service.check(urls.service_url)

    assert refused.value.reason is Reason.SCHEMA_OUTDATED
    assert refused.value.metadata == {"service": "example", "found": revision, "needed": "0002"}


async def test_check_refuses_an_empty_database(
    databases: Databases, service: ServiceMigrations
) -> None:
    with pytest.raises(FailedPreconditionError, match="never migrated"):
        await service.check(databases.url(await databases.create()))


async def test_upgrade_refuses_the_database_of_a_newer_release(
    databases: Databases, urls: ServiceDatabase, service: ServiceMigrations
) -> None:
    await execute_all(urls.admin_url, "UPDATE example.schema_version SET version_num = '9000'")

    with pytest.raises(FailedPreconditionError, match="newer release"):
        await service.upgrade(urls.admin_url, databases.passwords)


async def test_upgrade_reports_an_unreachable_database(service: ServiceMigrations) -> None:
    with pytest.raises(UnavailableError):
        await service.upgrade("postgresql://nobody@127.0.0.1:1/none")


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrations that wait briefly for the lock of a table."""
    monkeypatch.setattr(migrations, "_LOCK_TIMEOUT_MILLISECONDS", 50)
    monkeypatch.setattr(migrations, "_LOCK_PAUSE_SECONDS", 0.2)


@asynccontextmanager
async def _reader(url: str, table: str) -> AsyncIterator[asyncpg.Connection]:
    """A transaction that has read a table and stays open."""
    connection = await asyncpg.connect(url, server_settings={"application_name": "report"})
    try:
        await connection.execute(f"BEGIN; SELECT count(*) FROM {table}")
        yield connection
    finally:
        await connection.close()


async def _locked_service(databases: Databases, versions: Path) -> tuple[ServiceMigrations, str]:
    """A service with a table and a further migration that changes it."""
    _migration(versions, "0001", None, "CREATE TABLE plain (name text PRIMARY KEY)")
    service, url = _other(frozenset({"plain"})), databases.url(await databases.create())
    await service.upgrade(url, databases.passwords)
    _migration(versions, "0002", "0001", "ALTER TABLE plain ADD COLUMN text text")
    return _other(frozenset({"plain"})), url


async def test_statements_run_while_a_migration_waits_for_a_long_transaction(
    databases: Databases,
    other_service: Path,
    short_waits: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service, url = await _locked_service(databases, other_service)
    count = "SELECT count(*) FROM other.plain"
    async with _reader(url, "other.plain") as reader:
        upgrade = asyncio.create_task(service.upgrade(url, databases.passwords))
        while "a migration waits for a lock" not in caplog.text and not upgrade.done():
            # It waits at most as long as one attempt of the migration.
            assert await fetch_value(url, count) == 0
        assert "(report, user " in caplog.text
        assert not upgrade.done()
        await reader.execute("COMMIT")
        await upgrade
    assert await service.version(url) == "0002"


async def test_a_migration_that_gets_no_lock_fails_and_names_the_sessions(
    databases: Databases,
    other_service: Path,
    short_waits: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(migrations, "_LOCK_WAIT_SECONDS", 0.3)
    service, url = await _locked_service(databases, other_service)
    async with _reader(url, "other.plain"):
        with pytest.raises(UnavailableError, match=r"did not get the lock.*\(report, user "):
            await service.upgrade(url, databases.passwords)
    assert await service.version(url) == "0001"
    await service.upgrade(url, databases.passwords)
    assert await service.version(url) == "0002"


async def test_an_upgrade_that_waits_for_another_holds_no_snapshot(
    databases: Databases, other_service: Path
) -> None:
    # CREATE INDEX CONCURRENTLY of the other upgrade would wait for it forever.
    _migration(other_service, "0001", None, "SELECT 1")
    service, url = _other(frozenset({"plain"})), databases.url(await databases.create())
    other = await asyncpg.connect(url)
    try:
        await other.execute("SELECT pg_advisory_lock(hashtext('strata.migrate'))")
        upgrade = asyncio.create_task(service.upgrade(url, databases.passwords))
        waiting = (
            "SELECT state FROM pg_stat_activity WHERE application_name = 'strata-migrate'"
            " AND datname = current_database() AND query LIKE '%advisory_lock%'"
        )
        while (state := await other.fetchval(waiting)) is None:
            await asyncio.sleep(0.01)
        for _ in range(20):
            if state == "idle":
                break
            await asyncio.sleep(0.01)
            state = await other.fetchval(waiting)
        assert state == "idle"
    finally:
        await other.close()
    await upgrade


async def test_an_upgrade_without_passwords_creates_no_roles(
    databases: Databases, other_service: Path
) -> None:
    _migration(other_service, "0001", None, "SELECT 1")
    service = ServiceMigrations("roleless", "other_service", "roleless")
    url = databases.url(await databases.create())

    with pytest.raises(FailedPreconditionError, match="strata_roleless_owner"):
        await service.upgrade(url)

    await execute_all(
        url,
        "CREATE ROLE strata_roleless_owner NOLOGIN",
        "CREATE ROLE strata_roleless LOGIN",
        "CREATE ROLE strata_roleless_worker LOGIN",
    )
    await service.upgrade(url)
    assert await service.version(url) == "0001"


async def test_a_role_that_bypasses_policies_is_refused(
    databases: Databases, other_service: Path
) -> None:
    _migration(other_service, "0001", None, "SELECT 1")
    service = ServiceMigrations("loose", "other_service", "loose")
    url = databases.url(await databases.create())
    await service.upgrade(url, databases.passwords)
    await execute_all(url, "ALTER ROLE strata_loose BYPASSRLS")

    with pytest.raises(FailedPreconditionError, match="strata_loose"):
        await service.upgrade(url, databases.passwords)


async def test_changed_passwords_take_effect(databases: Databases, other_service: Path) -> None:
    _migration(other_service, "0001", None, "SELECT 1")
    service = ServiceMigrations("renewed", "other_service", "renewed")
    name = await databases.create()
    server = databases._postgres
    for password in ("first-password", "second-password"):
        await service.upgrade(databases.url(name), RolePasswords(password, password))
        for user in (service.roles.service, service.roles.worker):
            await service.check(server.url(user=user, password=password, database=name))
    with pytest.raises(asyncpg.InvalidPasswordError):
        await fetch_value(
            server.url(user="strata_renewed", password="first-password", database=name), "SELECT 1"
        )


async def test_migrations_run_as_an_admin_without_superuser(
    databases: Databases, other_service: Path
) -> None:
    _migration(other_service, "0001", None, "CREATE TABLE plain (name text PRIMARY KEY)")
    name = await databases.create()
    await execute_all(
        databases.url(name),
        "CREATE ROLE deployer LOGIN CREATEROLE PASSWORD 'deployer-password'",
        f"GRANT CREATE ON DATABASE {name} TO deployer",
        "GRANT CREATE ON SCHEMA public TO deployer",
    )
    url = databases._postgres.url(user="deployer", password="deployer-password", database=name)
    service = ServiceMigrations("modest", "other_service", "modest", frozenset({"plain"}))

    await service.upgrade(url, databases.passwords)
    await service.upgrade(url, databases.passwords)

    assert await service.version(url) == "0001"


async def test_a_failed_migration_keeps_the_previous_revision(
    databases: Databases, other_service: Path
) -> None:
    _migration(other_service, "0001", None, "CREATE TABLE plain (name text PRIMARY KEY)")
    _migration(
        other_service, "0002", "0001", "CREATE TABLE second (x int); SELECT * FROM no_such_table"
    )
    url = databases.url(await databases.create())

    with pytest.raises(asyncpg.UndefinedTableError):
        await _other(frozenset({"plain"})).upgrade(url, databases.passwords)

    assert await _other().version(url) == "0001"
    assert await fetch_value(url, "SELECT to_regclass('other.second')") is None
    # The table of the revision is protected before the first migration, because nothing repeats an
    # upgrade that is interrupted after the last one.
    privilege = "SELECT has_table_privilege('strata_other{}', 'other.schema_version', '{}')"
    assert await fetch_value(url, privilege.format("_worker", "SELECT"))
    for name in ("INSERT", "UPDATE", "DELETE"):
        assert not await fetch_value(url, privilege.format("", name))


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("CREATE TABLE bare (id text PRIMARY KEY)", "bare lacks project_id"),
        (
            "CREATE TABLE late (id text, project_id text NOT NULL, PRIMARY KEY (id, project_id))",
            "late lacks project_id first in its primary key",
        ),
        (
            """CREATE TABLE lax (project_id text PRIMARY KEY);
            ALTER TABLE lax ENABLE ROW LEVEL SECURITY;
            CREATE POLICY tenant ON lax USING (true)""",
            "lax lacks forced row-level security",
        ),
        (
            """CREATE TABLE shut (project_id text PRIMARY KEY);
            ALTER TABLE shut ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY""",
            "shut lacks a tenant policy",
        ),
        ("CREATE VIEW window_on_all AS SELECT 1 AS x", "window_on_all is not security_invoker"),
    ],
)
async def test_a_table_open_to_other_tenants_fails_the_upgrade(
    databases: Databases, other_service: Path, sql: str, fault: str
) -> None:
    _migration(other_service, "0001", None, sql)

    with pytest.raises(FailedPreconditionError, match=fault):
        await _other().upgrade(databases.url(await databases.create()), databases.passwords)


def test_the_head_is_the_newest_migration_file(other_service: Path) -> None:
    _migration(other_service, "0001", None, "SELECT 1")
    _migration(other_service, "0002", "0001", "SELECT 1")
    (other_service / "helpers.py").write_text("")

    assert _other().head == "0002"
    shutil.rmtree(other_service)
    with pytest.raises(FileNotFoundError):
        assert _other().head


@pytest.mark.parametrize("name", ["", "Recall", "a;b", "1a", "a" * 60])
def test_names_that_could_be_sql_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="plain name"):
        ServiceMigrations(name, "other_service", "other")


async def test_service_needs_the_type_of_a_tenant_that_an_upgrade_creates(
    databases: Databases, service: ServiceMigrations
) -> None:
    url = databases.url(await databases.create())
    await service.upgrade(url, databases.passwords)
    await service.check(url)
    await execute_all(url, "DROP SCHEMA strata CASCADE")

    with pytest.raises(FailedPreconditionError, match="older release") as outdated:
        await service.check(url)
    assert outdated.value.reason is Reason.SCHEMA_OUTDATED

    await service.upgrade(url, databases.passwords)
    await service.check(url)
