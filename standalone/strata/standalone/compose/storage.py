"""Starts the engines of a data folder, and migrates their schemas."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import asyncpg

from strata.protocol.errors import UnavailableError
from strata.shared.logs import LogFormat, LogLevel
from strata.shared.migrate import is_verified_by
from strata.standalone.compose.migration import migration_process
from strata.standalone.compose.services import SERVICES, StoringServiceSpec, load_services
from strata.standalone.data_folder import DataFolder
from strata.standalone.files import REPLACED_AT_START, damaged_secret
from strata.standalone.postgres import EmbeddedPostgres
from strata.standalone.vectors import EmbeddedVectors

DATABASE = "strata"


@dataclass(frozen=True, slots=True)
class ServiceDatabase:
    """Connection URLs of a service's schema."""

    service_url: str
    worker_url: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Running engines with migrated schemas.

    Attributes:
        databases: Connection URLs by service.
        processes: The pids of the engines by name.
    """

    postgres: EmbeddedPostgres
    vectors: EmbeddedVectors
    databases: dict[str, ServiceDatabase]

    @property
    def processes(self) -> dict[str, int]:
        """The pids of the engines by name."""
        pids = {"postgres": self.postgres.pid, "vectors": self.vectors.pid}
        return {name: pid for name, pid in pids.items() if pid is not None}


async def open_storage(
    folder: DataFolder,
    stack: AsyncExitStack,
    *,
    in_process: bool,
    log_level: LogLevel,
    log_format: LogFormat,
) -> Storage:
    """Starts the engines of an open data folder and brings every schema up to date.

    Args:
        folder: An open folder.
        stack: Stops the engines.
        in_process: Whether the services will run in this process. They are imported meanwhile,
            which takes longer than the start of the engines.
        log_level: Lowest level that migrations log.
        log_format: Form of their logs.

    Raises:
        FailedPreconditionError: The folder was written by a newer release, or a secret in it is
            damaged.
        UnavailableError: An engine does not come up.
    """
    postgres = EmbeddedPostgres(folder.postgres)
    vectors = EmbeddedVectors(folder.vectors)
    stack.push_async_callback(vectors.stop)
    stack.push_async_callback(postgres.stop)
    async with AsyncExitStack() as starting:
        migration = None
        if postgres.is_new:
            migration = await starting.enter_async_context(migration_process())
        async with asyncio.TaskGroup() as group:
            group.create_task(postgres.start())
            group.create_task(vectors.start())
            if in_process:
                group.create_task(asyncio.to_thread(load_services))
        await create_database(postgres)
        admin_url = postgres.url(database=DATABASE)
        outdated = []
        for spec in SERVICES:
            are_new = not all(path.exists() for path in folder.role_password_files(spec.name))
            passwords = folder.role_passwords(spec.name)
            if await spec.migrations.version(admin_url) != spec.migrations.head:
                outdated.append((spec.migrations, passwords))
            elif are_new:
                await spec.migrations.create_roles(admin_url, passwords)
        if outdated:
            if migration is None:
                migration = await starting.enter_async_context(migration_process())
            await migration.upgrade(admin_url, outdated, log_level, log_format)
        await _check_role_passwords(folder, admin_url)
    databases = {spec.name: _database_of(folder, postgres, spec) for spec in SERVICES}
    return Storage(postgres, vectors, databases)


async def create_database(postgres: EmbeddedPostgres) -> None:
    """Creates the database of the services if it does not exist.

    Raises:
        FailedPreconditionError: The stored password of the superuser is wrong.
        UnavailableError: The disk is full.
    """
    try:
        connection = await asyncpg.connect(postgres.url())
    except asyncpg.InvalidPasswordError as error:
        problem = "it is not the password of the database's superuser"
        raise damaged_secret(postgres.password_file, problem) from error
    try:
        exists = await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE)
        if exists is None:
            await connection.execute(f'CREATE DATABASE "{DATABASE}"')
    except asyncpg.InsufficientResourcesError as error:
        raise UnavailableError(f"the database was not created: {error}") from error
    finally:
        await connection.close()


async def _check_role_passwords(folder: DataFolder, admin_url: str) -> None:
    """Checks that the secrets of the folder are the passwords of the database roles.

    The services would report only that the database refuses a role.

    Raises:
        FailedPreconditionError: One is not; the message names its file.
    """
    connection = await asyncpg.connect(admin_url)
    try:
        rows = await connection.fetch("SELECT rolname, rolpassword FROM pg_authid")
    finally:
        await connection.close()
    verifiers = {row["rolname"]: row["rolpassword"] for row in rows}
    for spec in SERVICES:
        roles, passwords = spec.migrations.roles, folder.role_passwords(spec.name)
        service_file, worker_file = folder.role_password_files(spec.name)
        for role, password, path in (
            (roles.service, passwords.service, service_file),
            (roles.worker, passwords.worker, worker_file),
        ):
            if not is_verified_by(password, verifiers.get(role) or ""):
                problem = f"it is not the password of the database role {role}"
                raise damaged_secret(path, problem, REPLACED_AT_START)


def _database_of(
    folder: DataFolder, postgres: EmbeddedPostgres, spec: StoringServiceSpec
) -> ServiceDatabase:
    roles, passwords = spec.migrations.roles, folder.role_passwords(spec.name)
    return ServiceDatabase(
        service_url=postgres.url(user=roles.service, password=passwords.service, database=DATABASE),
        worker_url=postgres.url(user=roles.worker, password=passwords.worker, database=DATABASE),
    )
