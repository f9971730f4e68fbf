"""Runs migrations with Alembic, over a connection of SQLAlchemy."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, text
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from strata.shared.db.connections import connect
from strata.shared.db.driver_connection import DriverConnection
from strata.shared.package_stand_in import stand_in

# The package also loads the sessions of the object-relational mapper: 45 modules that are not used.
with stand_in("sqlalchemy.ext.asyncio"):
    from sqlalchemy.ext.asyncio.engine import AsyncConnection, create_async_engine

_SEVERAL_STATEMENTS = re.compile(r";\s*\S")
_ALEMBIC = threading.Lock()
Steps = Callable[[ScriptDirectory, Any], object]


async def run_steps(
    url: str,
    preparation: Sequence[str],
    script: ScriptDirectory,
    steps: Steps,
    *,
    application_name: str,
    schema: str,
    version_table: str,
) -> None:
    """Runs migrations, each in one transaction.

    Args:
        url: URL of the database.
        preparation: Statements that are committed before.
        script: The migrations.
        steps: Returns those to run, from the migrations and the revision of the database.
        application_name: Name of the connection.
        schema: The schema of the version table.
        version_table: Table of the revision.

    Raises:
        asyncpg.PostgresError: A statement failed.
    """
    try:
        async with _connect(url, application_name) as connection:
            for statement in preparation:
                await connection.execute(text(statement))
            await connection.commit()
            async with _alone():
                await connection.run_sync(_run, script, steps, schema, version_table)
    except DBAPIError as error:
        raise _driver_error(error) from error


def _run(
    connection: Connection, script: ScriptDirectory, steps: Steps, schema: str, version_table: str
) -> None:
    def planned(current: object, _context: object) -> object:
        return steps(script, current)

    with EnvironmentContext(Config(), script, fn=planned) as environment:
        environment.configure(
            connection=connection,
            version_table=version_table,
            version_table_schema=schema,
            transaction_per_migration=True,
        )
        with environment.begin_transaction():
            environment.run_migrations()


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    """Runs the block while no other migration runs in this process, in any event loop.

    Alembic's `op` is global to the process: concurrent migrations of two databases would send
    statements to the wrong one.
    """
    while not _ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110 - held across event loops
        await asyncio.sleep(0.02)
    try:
        yield
    finally:
        _ALEMBIC.release()


@asynccontextmanager
async def _connect(url: str, application_name: str) -> AsyncIterator[AsyncConnection]:
    """Opens one connection for the block."""

    async def open_connection(**_options: object) -> DriverConnection:
        # The driver reads the URL, as it does for all other connections.
        return await connect(url, {"application_name": application_name})

    engine = create_async_engine(
        "postgresql+asyncpg://",
        poolclass=NullPool,
        connect_args={
            "async_creator_fn": open_connection,
            # A migration may change the tables of a statement that it repeats.
            "prepared_statement_cache_size": 0,
        },
    )
    event.listen(engine.sync_engine, "do_execute", _execute_script)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


def _execute_script(
    cursor: DBAPICursor, statement: str, parameters: object, context: Any
) -> bool | None:
    """Sends several statements as one simple query.

    The driver would prepare the text, and PostgreSQL prepares only one statement at a time.
    """
    if parameters or not _SEVERAL_STATEMENTS.search(statement):
        return None
    cursor.execute("SELECT 1", ())  # opens SQLAlchemy's transaction
    context.root_connection.connection.run_async(lambda driver: driver.execute(statement))
    return True


def _driver_error(error: DBAPIError) -> BaseException:
    """Returns the driver's error, unwrapped from SQLAlchemy's."""
    if error.orig is None or isinstance(error.orig, asyncpg.PostgresError):
        return error.orig or error
    return error.orig.__cause__ or error.orig
