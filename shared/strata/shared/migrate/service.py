"""Migrations of one service: Alembic, run from code, over the service's own schema and roles."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from strata.protocol.errors import (
    FailedPreconditionError,
    Reason,
    StrataError,
    UnavailableError,
)
from strata.shared.db.connections import connect
from strata.shared.db.driver_connection import DriverConnection
from strata.shared.db.errors import as_strata_error, unavailable
from strata.shared.logs import get_logger
from strata.shared.migrate.locks import lock_holders
from strata.shared.migrate.roles import (
    RolePasswords,
    ServiceRoles,
    check_partition,
    ensure_extensions,
    ensure_partition,
    ensure_roles,
    ensure_schema,
    ensure_tenant_type,
    has_tenant_type,
)
from strata.shared.migrate.tenancy import check_tenancy
from strata.shared.partitions import DEFAULT_PARTITION

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

APPLICATION_NAME = "strata-migrate"
"""Name of the connections of migrations, which PostgreSQL shows."""
VERSION_TABLE = "schema_version"

_log = get_logger(__name__)

_REVISION_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.py")
# One advisory lock for all services, because they share extensions and the roles of the cluster.
_LOCK = "hashtext('strata.migrate')"
_LOCK_POLL_SECONDS = 0.02
# How long one attempt waits for the lock of a table, the pause before the next attempt, and the
# time after which the migration fails.
_LOCK_TIMEOUT_MILLISECONDS = 2_000
_LOCK_PAUSE_SECONDS = 3.0
_LOCK_WAIT_SECONDS = 120.0
_LOCK_CONFLICTS = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
_Steps = Callable[["ScriptDirectory", Any], object]


@dataclass(frozen=True)
class ServiceMigrations:
    """The migrations of a service's schema, and the check that they have been applied.

    The package has files `versions/NNNN_name.py`, each with `revision = "NNNN"`, its predecessor in
    `down_revision`, and `upgrade()`. They run as the schema's owner with the schema first in
    the search path, so plain SQL through `op.execute` needs no schema names. Default privileges
    give the service role access to new tables; a migration that the worker role needs grants its
    privileges and policies explicitly (see `strata.shared.db.policies`).

    Attributes:
        service: Name of the service: `recall`.
        package: The package with the migrations: `strata.recall.migrations`.
        schema: The schema the service owns.
        untenanted: Tables without tenant data, exempt from row-level security.
    """

    service: str
    package: str
    schema: str
    untenanted: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in (self.service, self.schema):
            if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
                raise ValueError(f"{name!r} is not a plain name")

    @property
    def roles(self) -> ServiceRoles:
        """The service's roles."""
        return ServiceRoles.of(self.service)

    @cached_property
    def head(self) -> str:
        """The newest revision in the package, read from file names without Alembic."""
        if not self.revisions:
            raise FileNotFoundError(f"{self.package} has no versions/NNNN_name.py")
        return self.revisions[-1]

    @cached_property
    def revisions(self) -> tuple[str, ...]:
        """All revisions in the package, oldest first, read from file names."""
        matches = [_REVISION_FILE.fullmatch(path.name) for path in self._versions.glob("*.py")]
        return tuple(sorted(match.group(1) for match in matches if match))

    async def upgrade(
        self,
        admin_url: str,
        passwords: RolePasswords | None = None,
        partition: str = DEFAULT_PARTITION,
    ) -> None:
        """Migrates roles, schema and tables to `head`; may be repeated and run concurrently.

        Each migration is one transaction: after a failure the database is at the last successful
        one. Afterwards every table is checked for tenant isolation.

        Args:
            admin_url: URL of a superuser, or a role that may create roles, schemas, extensions.
            passwords: Passwords to create the roles with; None if the roles are managed elsewhere.
            partition: The partition that the database is to be.

        Raises:
            FailedPreconditionError: Roles or extensions are missing, the database is ahead of
                this release, or a table is not bound to tenants (``SCHEMA_OUTDATED``). It is that
                of another partition (``PARTITION_NOT_CONFIGURED``).
            UnavailableError: The database cannot be reached, its disk is full, it is read-only, or
                a table stays locked.
        """
        async with self._reported_states(), _connect(admin_url) as admin:
            await _lock_migrations(admin)
            await ensure_roles(admin, self.roles, passwords)
            await ensure_extensions(admin)
            await ensure_tenant_type(admin)
            revision = await self._version(admin)
            await ensure_partition(admin, partition, is_new=revision is None)
            await ensure_schema(admin, self.schema, self.roles)
            if revision is not None and revision > self.head:
                raise self._outdated(revision)
            await self._migrate(admin_url, admin, self._up)
            await check_tenancy(admin, self.schema, self.untenanted | {VERSION_TABLE})

    async def create_roles(self, admin_url: str, passwords: RolePasswords) -> None:
        """Creates the roles, and nothing else: for a database whose schema is loaded from a dump.

        Raises: as `upgrade`.
        """
        async with _connect(admin_url) as admin:
            await ensure_roles(admin, self.roles, passwords)

    async def downgrade(self, admin_url: str, revision: str | None = None) -> None:
        """Reverts the newest migrations, and drops the tables that they created with their rows.

        The service must not run meanwhile. Roles, schema and extensions stay.

        Args:
            admin_url: As for `upgrade`.
            revision: The revision to return to; None for a schema without tables.

        Raises:
            ValueError: The package has no such revision.
            FailedPreconditionError: The database is behind that revision, or ahead of this
                release (``SCHEMA_OUTDATED``).
            UnavailableError: The database cannot be reached, or a table stays locked.
        """
        if revision is not None and revision not in self.revisions:
            raise ValueError(f"{self.package} has no revision {revision}")
        async with _connect(admin_url) as admin:
            await _lock_migrations(admin)
            stored_revision = await self._version(admin)
            if (stored_revision or "") < (revision or "") or (stored_revision or "") > self.head:
                raise self._outdated(stored_revision)

            def down(script: ScriptDirectory, current: Any) -> object:
                return script._downgrade_revs(revision or "base", current)  # noqa: SLF001

            await self._migrate(admin_url, admin, down)

    async def version(self, url: str) -> str | None:
        """Returns the revision of the database, None if the service was never migrated."""
        async with _connect(url) as connection, connection.transaction(readonly=True):
            return await self._version(connection)

    async def check(self, url: str, partition: str = DEFAULT_PARTITION) -> None:
        """Checks that the database is at `head`; any role of the service may do so.

        Args:
            url: URL of the database.
            partition: The partition that it is to be.

        Raises:
            FailedPreconditionError: The database is behind or ahead (``SCHEMA_OUTDATED``); the
                metadata names both revisions. The database belongs to another partition
                (``PARTITION_NOT_CONFIGURED``).
            UnavailableError: The database cannot be reached.
        """
        # In a transaction, for a pooler that may use another session for each one.
        async with _connect(url) as connection, connection.transaction(readonly=True):
            revision = await self._version(connection)
            if revision != self.head:
                raise self._outdated(revision)
            if not await has_tenant_type(connection):
                raise FailedPreconditionError(
                    f"the database of {self.service} was migrated by an older release: "
                    "run `strata migrate`",
                    reason=Reason.SCHEMA_OUTDATED,
                    metadata={
                        "service": self.service,
                        "found": revision or "",
                        "needed": self.head,
                    },
                )
            await check_partition(connection, partition)

    @asynccontextmanager
    async def _reported_states(self) -> AsyncIterator[None]:
        """Reports states of the database that pass, such as a full disk, with their cause."""
        try:
            yield
        except StrataError:
            raise
        except Exception as error:
            if not isinstance(as_strata_error(error), UnavailableError):
                raise
            raise UnavailableError(
                f"the schema of {self.service} was not migrated: {error}. Remove the"
                " cause and try again; complete migrations are not repeated.",
                metadata={"service": self.service, "dependency": "postgres"},
            ) from error

    async def _migrate(self, admin_url: str, admin: DriverConnection, steps: _Steps) -> None:
        """Runs migrations, and repeats one that does not get the lock of a table in time.

        A statement that waits for an ACCESS EXCLUSIVE lock makes all later statements of the table
        wait too, so each wait is short, and other statements run in the pauses. Each migration is
        one transaction, so a repetition continues after the last complete one.
        """
        deadline = time.monotonic() + _LOCK_WAIT_SECONDS
        while True:
            try:
                await self._migrate_once(admin_url, steps)
                break
            except _LOCK_CONFLICTS as error:
                holders = await lock_holders(admin, self.schema)
                if time.monotonic() >= deadline:
                    raise self._locked(holders) from error
                _log.warning("a migration waits for a lock", service=self.service, held_by=holders)
            await asyncio.sleep(_LOCK_PAUSE_SECONDS)

    def _locked(self, holders: Sequence[str]) -> UnavailableError:
        return UnavailableError(
            f"a migration of {self.service} did not get the lock of a table within"
            f" {_LOCK_WAIT_SECONDS:g} s: end the transactions that use its tables, and run"
            " `strata migrate` again; complete migrations are not repeated. Sessions with locks: "
            + ("; ".join(holders) or "none now"),
            metadata={"service": self.service, "dependency": "postgres"},
        )

    async def _migrate_once(self, admin_url: str, steps: _Steps) -> None:
        # Imported here, because SQLAlchemy and Alembic take 25 MB of memory, and a service needs
        # neither.
        from strata.shared.migrate.alembic_steps import run_steps  # noqa: PLC0415

        script = self._script()
        if script.get_current_head() != self.head:
            raise ValueError(f"{self.package}: the newest file and the newest revision differ")
        settings = (
            f"SET ROLE {self.roles.owner}",
            f"SET search_path = {self.schema}, public",
            f"SET lock_timeout = {_LOCK_TIMEOUT_MILLISECONDS}",
        )
        await run_steps(
            admin_url,
            # The table comes before the migrations: an upgrade that is interrupted after the last
            # one is not repeated.
            (*settings, *self._version_table()),
            script,
            steps,
            application_name=APPLICATION_NAME,
            schema=self.schema,
            version_table=VERSION_TABLE,
        )

    def _version_table(self) -> Sequence[str]:
        """Statements that create the table of the revision, as Alembic does, and protect it."""
        table = f"{self.schema}.{VERSION_TABLE}"
        key = f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num)"
        return (
            f"CREATE TABLE IF NOT EXISTS {table} (version_num varchar(32) NOT NULL, {key})",
            # The default privileges let the service write, but it must not change the revision.
            f"REVOKE INSERT, UPDATE, DELETE ON {table} FROM {self.roles.service}",
            f"GRANT SELECT ON {table} TO {self.roles.worker}",
        )

    def _up(self, script: ScriptDirectory, current: Any) -> object:
        # Alembic's own `upgrade` command does the same.
        return script._upgrade_revs(self.head, current)  # noqa: SLF001

    def _script(self) -> ScriptDirectory:
        from alembic.script import ScriptDirectory  # noqa: PLC0415

        return ScriptDirectory(str(self._versions.parent), version_locations=[str(self._versions)])

    @property
    def _versions(self) -> Path:
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"no package {self.package}", name=self.package)
        return Path(next(iter(spec.submodule_search_locations))) / "versions"

    async def _version(self, connection: DriverConnection) -> str | None:
        try:
            version: str | None = await connection.fetchval(
                f"SELECT version_num FROM {self.schema}.{VERSION_TABLE}"
            )
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            return None
        return version

    def _outdated(self, revision: str | None) -> FailedPreconditionError:
        state = "was never migrated" if revision is None else f"is at revision {revision}"
        return FailedPreconditionError(
            f"the database of {self.service} {state}, this release needs {self.head}: "
            + (
                "a newer release has migrated it"
                if revision is not None and revision > self.head
                else "run `strata migrate`"
            ),
            reason=Reason.SCHEMA_OUTDATED,
            metadata={"service": self.service, "found": revision or "", "needed": self.head},
        )


async def _lock_migrations(admin: DriverConnection) -> None:
    """Takes the lock of all migrations of the database, held until the connection closes.

    It is polled for, because a statement that waits for it holds a snapshot, for which
    CREATE INDEX CONCURRENTLY in another process would wait forever.
    """
    query = f"SELECT pg_try_advisory_lock({_LOCK})"
    while not await admin.fetchval(query):  # noqa: ASYNC110 - a lock of another process
        await asyncio.sleep(_LOCK_POLL_SECONDS)


@asynccontextmanager
async def _connect(url: str) -> AsyncIterator[DriverConnection]:
    """Opens one connection for the block.

    Raises:
        UnavailableError: The database cannot be reached.
    """
    try:
        connection = await connect(url, {"application_name": APPLICATION_NAME})
    except Exception as error:
        strata_error = unavailable() if isinstance(error, OSError) else as_strata_error(error)
        if strata_error is None:
            raise
        raise strata_error from error
    try:
        yield connection
    finally:
        await connection.close()
