"""Connections to PostgreSQL that send textual statements to the driver without SQLAlchemy.

SQLAlchemy opens the connections, translates statements (`driver_statements`), and executes what is
no single textual statement: savepoints, and statements with several sets of parameters.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import asyncpg
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.sql.expression import Executable

from strata.shared import context
from strata.shared.db.async_engine import AsyncConnection, AsyncEngine
from strata.shared.db.driver_statements import DriverStatement, DriverStatements
from strata.shared.db.errors import is_outdated
from strata.shared.db.policies import SHARED_SCHEMA, TENANT_TYPE
from strata.shared.db.statement_spans import statement_span
from strata.shared.db.statistics import Statistics


class StatementResult(IteratorResult[Any]):
    """The rows of a statement, all of which have arrived.

    Args:
        columns: The names of its columns.
        records: The rows.
        status: What the server says about the statement, such as ``UPDATE 3``.
    """

    def __init__(
        self, columns: SimpleResultMetaData, records: Iterable[Sequence[Any]], status: str
    ) -> None:
        super().__init__(columns, iter(records))
        self._status = status

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement returned or changed; -1 if it did neither."""
        number = self._status.rpartition(" ")[2]
        return int(number) if number.isdecimal() else -1


@dataclass(slots=True)
class StatementsOfDatabase:
    """What the connections of a database have in common.

    Attributes:
        translated: The statements.
        statistics: Counts them.
        most_prepared: Prepared statements of a connection; 0 to prepare each for one execution.
        name: Returns a name for a prepared statement.
        schema: Number of the form of the database's schema. It is raised when a prepared statement
            turns out to be outdated; every connection then prepares its statements again.
    """

    translated: DriverStatements
    statistics: Statistics
    most_prepared: int
    name: Callable[[], str]
    schema: int = 0


class DatabaseConnection(AsyncConnection):
    """A connection, which stays open between its uses.

    Args:
        engine: Opens it.
        statements: The statements.
    """

    __slots__ = ("_lock", "_prepared", "_schema", "_statements", "driver", "knows_tenant_type")

    driver: asyncpg.Connection[Any]

    def __init__(self, engine: AsyncEngine, statements: StatementsOfDatabase) -> None:
        super().__init__(engine)
        self._statements = statements
        self._schema = statements.schema
        self._prepared: OrderedDict[DriverStatement, tuple[Any, SimpleResultMetaData]] = (
            OrderedDict()
        )
        # The driver refuses a statement while another one is under way.
        self._lock = asyncio.Lock()
        self.knows_tenant_type = False

    async def open(self) -> None:
        """Opens it.

        Raises:
            Exception: The server cannot be reached, as an error of the driver or of the system.
        """
        await self.start()
        assert self.sync_connection is not None
        pooled = self.sync_connection.connection
        self.driver = cast("asyncpg.Connection[Any]", pooled.driver_connection)

    @property
    def is_unused(self) -> bool:
        """Whether it is open and has no transaction, neither in SQLAlchemy nor at the server."""
        connection, driver = self.sync_connection, self.driver
        return not (
            driver.is_closed()
            or driver.is_in_transaction()
            or connection is None
            or connection.invalidated
            or connection.in_transaction()
        )

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
        self,
        statement: Executable,
        parameters: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        **options: Any,
    ) -> Any:
        """Executes a statement; see `AsyncConnection.execute`."""
        if not options and not isinstance(parameters, list | tuple):
            translated = self._statements.translated.translate(statement)
            if translated is not None:
                values = cast("Mapping[str, object]", parameters or {})
                return await self.run(translated, values)
        async with self._lock:
            return await super().execute(statement, parameters, **options)

    async def run(
        self, statement: DriverStatement, values: Mapping[str, object]
    ) -> StatementResult:
        """Executes a statement of the driver.

        Raises:
            sqlalchemy.exc.IntegrityError: It violates a constraint.
            sqlalchemy.exc.DBAPIError: It failed for another reason.
            sqlalchemy.exc.InvalidRequestError: A value is missing.
        """
        async with self._lock:
            return await self.run_alone(statement, values)

    async def run_alone(
        self, statement: DriverStatement, values: Mapping[str, object]
    ) -> StatementResult:
        """Executes a statement, for a caller that nobody shares the connection with.

        Raises: as `run` does.
        """
        arguments = statement.arguments(values)
        self._statements.statistics.count_statement(statement.sql)
        span = context.current().span
        try:
            if span is None:
                return await self._execute(statement, arguments)
            with statement_span(span, statement.sql):
                return await self._execute(statement, arguments)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if is_outdated(error):
                self._statements.schema += 1
            raise _as_sqlalchemy(error)(statement.sql, tuple(arguments), error) from error

    async def _execute(
        self, statement: DriverStatement, arguments: Sequence[object]
    ) -> StatementResult:
        if self._schema != self._statements.schema:
            self._schema = self._statements.schema
            self._prepared.clear()
            await self.driver.reload_schema_state()
        entry = self._prepared.get(statement)
        if entry is None:
            entry = await self._prepare(statement)
        else:
            self._prepared.move_to_end(statement)
        prepared, columns = entry
        records = await prepared.fetch(*arguments)
        return StatementResult(columns, records, prepared.get_statusmsg())

    async def _prepare(self, statement: DriverStatement) -> tuple[Any, SimpleResultMetaData]:
        prepare: Callable[..., Awaitable[Any]] = self.driver.prepare
        prepared = await prepare(statement.sql, name=self._statements.name())
        names = statement.columns or [column.name for column in prepared.get_attributes()]
        result = prepared, SimpleResultMetaData(names)
        if self._statements.most_prepared:
            self._prepared[statement] = result
            if len(self._prepared) > self._statements.most_prepared:
                self._prepared.popitem(last=False)
        return result


def _as_sqlalchemy(error: Exception) -> type[DBAPIError]:
    """Returns the class that SQLAlchemy has for an error of the driver."""
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return IntegrityError
    if isinstance(error, asyncpg.SyntaxOrAccessError):
        return ProgrammingError
    return DBAPIError
