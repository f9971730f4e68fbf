"""Starts the engines of a data folder, and migrates their schemas."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import asyncpg

from strata.protocol.errors import UnavailableError
from strata.shared.logs import LogFormat, LogLevel
from strata.standalone.compose.migration import migration_process
from strata.standalone.compose.services import SERVICES, StoringServiceSpec, load_services
from strata.standalone.data_folder import DataFolder
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
        FailedPreconditionError: The folder was written by a newer release.
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
        outdated = [
            (spec.migrations, folder.role_passwords(spec.name))
            for spec in SERVICES
            if await spec.migrations.version(admin_url) != spec.migrations.head
        ]
        if outdated:
            if migration is None:
                migration = await starting.enter_async_context(migration_process())
            await migration.upgrade(admin_url, outdated, log_level, log_format)
    databases = {spec.name: _database_of(folder, postgres, spec) for spec in SERVICES}
    return Storage(postgres, vectors, databases)


async def create_database(postgres: EmbeddedPostgres) -> None:
    """Creates the database of the services if it does not exist.

    Raises:
        UnavailableError: The disk is full.
    """
    connection = await asyncpg.connect(postgres.url())
    try:
        exists = await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE)
        if exists is None:
            await connection.execute(f'CREATE DATABASE "{DATABASE}"')
    except asyncpg.InsufficientResourcesError as error:
        raise UnavailableError(f"the database was not created: {error}") from error
    finally:
        await connection.close()


def _database_of(
    folder: DataFolder, postgres: EmbeddedPostgres, spec: StoringServiceSpec
) -> ServiceDatabase:
    roles, passwords = spec.migrations.roles, folder.role_passwords(spec.name)
    return ServiceDatabase(
        service_url=postgres.url(user=roles.service, password=passwords.service, database=DATABASE),
        worker_url=postgres.url(user=roles.worker, password=passwords.worker, database=DATABASE),
    )
