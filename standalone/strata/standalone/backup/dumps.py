"""Dumps of the database, by the programs of PostgreSQL."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import asyncpg

from strata.protocol.errors import UnavailableError
from strata.shared.migrate.service import VERSION_TABLE
from strata.standalone.postgres_binaries import find_binaries
from strata.standalone.supervisor import Identity

_TABLES = """
SELECT schemaname, tablename FROM pg_tables
 WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2
"""
_OUTPUT_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of the database.

    Attributes:
        name: Its name for `dump`, valid while the transaction that exported it is open.
        rows: The rows of each table, by ``schema.table``.
        revisions: The revision of each schema that has one.
    """

    name: str
    rows: dict[str, int]
    revisions: dict[str, str]


@asynccontextmanager
async def snapshot(url: str) -> AsyncIterator[Snapshot]:
    """Exports a snapshot of a database, so that a dump and the counts agree.

    Args:
        url: URL of a superuser.

    Raises:
        UnavailableError: The database refused a query, because its disk is full for instance.
    """
    async with (
        _connected(url) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        name = await connection.fetchval("SELECT pg_export_snapshot()")
        rows = await _count(connection)
        yield Snapshot(name, rows, await _revisions(connection, rows))


async def count_rows(url: str) -> dict[str, int]:
    """Returns the rows of each table of a database, by ``schema.table``.

    Raises: as `snapshot`.
    """
    async with _connected(url) as connection:
        return await _count(connection)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    try:
        connection = await asyncpg.connect(url)
        try:
            yield connection
        finally:
            await connection.close()
    except asyncpg.PostgresError as error:
        raise UnavailableError(f"The database cannot be read: {error}.") from error


async def _count(connection: asyncpg.Connection) -> dict[str, int]:
    rows = {}
    for schema, table in await connection.fetch(_TABLES):
        query = f'SELECT count(*) FROM "{schema}"."{table}"'
        rows[f"{schema}.{table}"] = await connection.fetchval(query)
    return rows


async def _revisions(connection: asyncpg.Connection, tables: Iterable[str]) -> dict[str, str]:
    revisions = {}
    for table in tables:
        schema, _, name = table.partition(".")
        if name == VERSION_TABLE:
            query = f'SELECT version_num FROM "{schema}"."{name}"'
            revisions[schema] = await connection.fetchval(query)
    return revisions


async def dump(url: str, moment: Snapshot, target: Path, engine_folder: Path) -> None:
    """Writes a compressed dump of a database.

    Args:
        url: URL of a superuser.
        moment: The snapshot to dump.
        target: The file to write.
        engine_folder: Where the programs are copied if they cannot be used in place.

    Raises:
        UnavailableError: The dump failed; the message ends with the output of the program.
    """
    options = ["--format=custom", f"--snapshot={moment.name}", f"--file={target}"]
    await _run("pg_dump", options, url, engine_folder)


async def load(url: str, source: Path, engine_folder: Path) -> None:
    """Loads a dump into an empty database, all or nothing.

    Args:
        url: URL of a superuser.
        source: The dump.
        engine_folder: See `dump`.

    Raises:
        UnavailableError: The load failed; the message ends with the output of the program.
    """
    options = ["--exit-on-error", "--single-transaction", str(source)]
    await _run("pg_restore", options, url, engine_folder)


async def _run(program: str, options: list[str], url: str, engine_folder: Path) -> None:
    # The client programs may run as root; only the server refuses to.
    binaries = await asyncio.to_thread(find_binaries, engine_folder, Identity())
    parts = urlsplit(url)
    target = [
        f"--host={parts.hostname}",
        f"--port={parts.port}",
        f"--username={unquote(parts.username or '')}",
        f"--dbname={unquote(parts.path.lstrip('/'))}",
        "--no-password",
    ]
    # A password on the command line could be read by every user of the machine.
    environment = {
        "LC_ALL": "C",
        "PATH": "/usr/bin:/bin",
        "PGPASSWORD": unquote(parts.password or ""),
    }
    process = await asyncio.to_thread(
        subprocess.run,
        [str(binaries / program), *target, *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        umask=0o077,
    )
    if process.returncode != 0:
        output = process.stderr.decode("utf-8", "replace")[-_OUTPUT_CHARACTERS:]
        raise UnavailableError(f"{program} failed: {output.strip()}")
