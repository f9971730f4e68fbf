"""Connections to PostgreSQL, which keep their prepared statements."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from strata.shared import context
from strata.shared.db.driver_connection import DriverConnection, Row
from strata.shared.db.errors import is_outdated
from strata.shared.db.policies import SHARED_SCHEMA, TENANT_TYPE
from strata.shared.db.statement_spans import statement_span
from strata.shared.db.statements import SqlStatement
from strata.shared.db.statistics import Statistics

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_SAVEPOINT = "strata_savepoint"
# The first byte of PostgreSQL's binary form of jsonb: its version.
_JSONB_VERSION = b"\x01"
_DECODER = json.JSONDecoder()


class StatementResult:
    """The rows of a statement, all of which have arrived.

    Args:
        rows: The rows.
        status: What the server says about the statement, such as ``UPDATE 3``.
    """

    __slots__ = ("_rows", "_status")

    def __init__(self, rows: Sequence[Row], status: str) -> None:
        self._rows = rows
        self._status = status

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement returned or changed; -1 if it did neither."""
        number = self._status.rpartition(" ")[2]
        return int(number) if number.isdecimal() else -1

    def all(self) -> Sequence[Row]:
        """Returns the rows."""
        return self._rows

    def first(self) -> Row | None:
        """Returns the first row; None if there is none."""
        return self._rows[0] if self._rows else None

    def one(self) -> Row:
        """Returns the only row.

        Raises:
            LookupError: There is none, or there are several.
        """
        if len(self._rows) != 1:
            raise LookupError(f"one row was expected, and there are {len(self._rows)}")
        return self._rows[0]

    def one_or_none(self) -> Row | None:
        """Returns the only row; None if there is none.

        Raises:
            LookupError: There are several.
        """
        return self.one() if self._rows else None

    def scalar(self) -> Any:
        """Returns the first value of the first row; None if there is no row."""
        return self._rows[0][0] if self._rows else None

    def scalar_one(self) -> Any:
        """Returns the first value of the only row.

        Raises:
            LookupError: See `one`.
        """
        return self.one()[0]

    def scalar_one_or_none(self) -> Any:
        """Returns the first value of the only row; None if there is no row.

        Raises:
            LookupError: There are several.
        """
        return self.one()[0] if self._rows else None

    def scalars(self) -> list[Any]:
        """Returns the first value of each row."""
        return [row[0] for row in self._rows]


@dataclass(slots=True)
class SessionOptions:
    """What the connections of a database have in common.

    Attributes:
        url: `postgresql://user:password@host:port/database`.
        server_settings: Settings of a session.
        statistics: Counts connections and statements.
        most_prepared: Prepared statements of a connection; 0 to prepare each for one execution.
        schema: Number of the form of the database's schema. It is raised when a prepared statement
            turns out to be outdated; every connection then prepares its statements again.
    """

    url: str
    server_settings: Mapping[str, str]
    statistics: Statistics
    most_prepared: int
    schema: int = 0


class DatabaseConnection:
    """A connection, which stays open between its uses. Create it with `connect`.

    Attributes:
        driver: The driver's connection.
        knows_tenant_type: Whether the driver has the codec of `TENANT_TYPE`.
    """

    __slots__ = ("_lock", "_options", "_prepared", "_schema", "driver", "knows_tenant_type")

    def __init__(self, driver: asyncpg.Connection[Any], options: SessionOptions) -> None:
        self.driver = driver
        self._options = options
        self._schema = options.schema
        self._prepared: OrderedDict[SqlStatement, Any] = OrderedDict()
        # The driver refuses a statement while another one is under way.
        self._lock = asyncio.Lock()
        self.knows_tenant_type = False

    @classmethod
    async def connect(cls, options: SessionOptions) -> DatabaseConnection:
        """Opens a connection.

        Raises:
            OSError: The server cannot be reached.
            asyncpg.PostgresError: The server refuses the connection.
        """
        connection = cls(await connect(options.url, options.server_settings), options)
        options.statistics.connections += 1
        return connection

    @property
    def is_unused(self) -> bool:
        """Whether it is open and has no transaction."""
        return not (self.driver.is_closed() or self.driver.is_in_transaction())

    async def learn_tenant_type(self) -> None:
        """Configures the driver to send a tenant as text, once for each connection.

        Without that the driver would read the type from the catalogue, in three statements that
        take much longer than this one.
        """
        if not self.knows_tenant_type:
            name = TENANT_TYPE.removeprefix(f"{SHARED_SCHEMA}.")
            await self.driver.set_builtin_type_codec(name, schema=SHARED_SCHEMA, codec_name="text")
            self.knows_tenant_type = True

    async def execute(
        self, statement: SqlStatement, values: Mapping[str, object] | None = None
    ) -> StatementResult:
        """Executes a statement.

        Args:
            statement: The statement.
            values: The values of its parameters, by name; others are ignored.

        Raises:
            asyncpg.IntegrityConstraintViolationError: It violates a constraint.
            asyncpg.PostgresError: It failed for another reason.
            asyncpg.InterfaceError: The driver refused it, or the connection is closed.
            ValueError: A value is missing.
        """
        async with self._lock:
            return await self.execute_alone(statement, values or {})

    async def execute_alone(
        self, statement: SqlStatement, values: Mapping[str, object]
    ) -> StatementResult:
        """Executes a statement, for a caller that nobody shares the connection with.

        Raises: as `execute` does.
        """
        arguments = statement.arguments(values)
        self._options.statistics.count_statement(statement.text)
        span = context.current().span
        try:
            if span is None:
                return await self._execute(statement, arguments)
            with statement_span(span, statement.text):
                return await self._execute(statement, arguments)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if is_outdated(error):
                self._options.schema += 1
            raise

    @asynccontextmanager
    async def undone(self) -> AsyncIterator[None]:
        """Runs the block, and then undoes its statements; other ones of the transaction stay.

        Use it in a transaction. It is not nested.
        """
        async with self._lock:
            await self.driver.execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            yield
        finally:
            if not self.driver.is_closed():
                async with self._lock:
                    await self.driver.execute(
                        f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}; RELEASE SAVEPOINT {_SAVEPOINT}"
                    )

    async def close(self) -> None:
        """Closes it, in order if the server answers soon."""
        try:
            await self.driver.close(timeout=_CLOSE_SECONDS)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self.driver.terminate()

    async def _execute(
        self, statement: SqlStatement, arguments: Sequence[object]
    ) -> StatementResult:
        if self._schema != self._options.schema:
            self._schema = self._options.schema
            self._prepared.clear()
            await self.driver.reload_schema_state()
        prepared = self._prepared.get(statement)
        if prepared is None:
            prepared = await self._prepare(statement)
        else:
            self._prepared.move_to_end(statement)
        return StatementResult(await prepared.fetch(*arguments), prepared.get_statusmsg())

    async def _prepare(self, statement: SqlStatement) -> Any:
        prepare: Callable[..., Awaitable[Any]] = self.driver.prepare
        prepared = await prepare(statement.text, name=_unique_statement_name())
        if self._options.most_prepared:
            self._prepared[statement] = prepared
            if len(self._prepared) > self._options.most_prepared:
                self._prepared.popitem(last=False)
        return prepared


async def connect(url: str, server_settings: Mapping[str, str]) -> DriverConnection:
    """Opens a connection of the driver, with rows as `Row` and JSON as Python values.

    If the caller is cancelled, the connection is completed and then closed. A driver that is
    cancelled while connecting would leave a broken session and an error in the server's log.

    Args:
        url: `postgresql://user:password@host:port/database`, with options of libpq.
        server_settings: Settings of the session.

    Raises:
        OSError: The server cannot be reached.
        asyncpg.PostgresError: The server refuses the connection.
    """
    connecting = asyncio.ensure_future(_connect(url, server_settings))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_hang_up)
        raise


async def _connect(url: str, server_settings: Mapping[str, str]) -> DriverConnection:
    driver: DriverConnection = await asyncpg.connect(
        url,
        connection_class=DriverConnection,
        record_class=Row,
        timeout=_CONNECT_SECONDS,
        server_settings=dict(server_settings),
        # `DatabaseConnection` keeps the statements: a cache of the driver's would keep each twice.
        statement_cache_size=0,
    )
    try:
        for name, encode, decode in (
            ("json", str.encode, _decode_json),
            ("jsonb", _encode_jsonb, _decode_jsonb),
        ):
            await driver.set_type_codec(
                name, schema="pg_catalog", encoder=encode, decoder=decode, format="binary"
            )
    except BaseException:
        driver.terminate()
        raise
    return driver


def _hang_up(connecting: asyncio.Future[DriverConnection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()


def _encode_jsonb(text: str) -> bytes:
    return _JSONB_VERSION + text.encode()


def _decode_jsonb(data: bytes) -> Any:
    return _decode_json(data[1:])


def _decode_json(data: bytes) -> Any:
    # PostgreSQL's own text of a value: `json.loads` would call eight functions to check it.
    return _DECODER.raw_decode(data.decode())[0]


def _unique_statement_name() -> str:
    """Returns a name for a prepared statement that no other client uses.

    Behind a pooler two clients may share one connection to the server.
    """
    return f"strata_{uuid.uuid4().hex}"
