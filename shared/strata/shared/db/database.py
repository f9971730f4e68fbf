"""Database transactions that are bound to one tenant.

Transactions are managed here, because their first message does two things: it sends BEGIN and sets
the tenant for row-level security. As one simple query they take one round trip.

A statement that is alone in its transaction needs no BEGIN. `Database.execute` sends it as it is,
and the type of its parameter sets the tenant (`policies.TENANT_TYPE`): one round trip instead of
three, and half the CPU time of PostgreSQL.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from strata.protocol.errors import InternalError
from strata.shared import context
from strata.shared.db.connections import (
    DatabaseConnection,
    SessionOptions,
    StatementResult,
)
from strata.shared.db.driver_connection import Row
from strata.shared.db.errors import (
    MissingTenantError,
    as_strata_error,
    is_lost_connection,
    is_outdated,
    pool_exhausted,
    unavailable,
    was_not_sent,
)
from strata.shared.db.policies import TENANT_SETTING
from strata.shared.db.statement_spans import statement_span
from strata.shared.db.statements import SqlStatement, sql
from strata.shared.db.statistics import Statistics
from strata.shared.fair_slots import ANY_NUMBER, SHARE, FairSlots, Slot
from strata.shared.logs import get_logger
from strata.shared.partitions import ANY_PARTITION, DEFAULT_PARTITION, not_configured
from strata.shared.telemetry import Histogram

# It is put into SQL text, so only the characters of ids are allowed.
_PROJECT_ID = re.compile(r"[A-Za-z0-9_\-]{1,128}")
_RELEASE_SECONDS = 5.0

# Work of the system counts as work of one more project.
_NO_TENANT = ""
_PING = sql("SELECT 1")

_log = get_logger(__name__)


@dataclass(slots=True)
class _Session:
    """A connection in use, with its project's slot."""

    connection: DatabaseConnection
    slot: Slot

    @property
    def driver(self) -> asyncpg.Connection[Any]:
        """The driver's connection beneath it."""
        return self.connection.driver


@dataclass(slots=True)
class _Connections:
    """The connections of a database, which its views share.

    Attributes:
        idle: The open ones that are not in use, in the order of their last use.
        in_use: Number of those in use.
        closed: Whether they are closed after their use.
    """

    idle: list[DatabaseConnection] = field(default_factory=list)
    in_use: int = 0
    closed: bool = False


class Database:
    """A pool of connections to one service's PostgreSQL schema, as one role.

    Projects share the connections fairly: one project has at most three quarters of them, and a
    free one goes to the project that uses the fewest.

    Args:
        url: `postgresql://user:password@host:port/database`.
        pool_size: Maximum number of connections.
        application_name: Shown by PostgreSQL for each connection.
        statement_timeout: Seconds after which the server ends a statement.
        pool_timeout: Seconds to wait for a free connection.
        prepared_statements: Prepared statements per connection; 0 for a pooler in transaction mode.
        hung_timeout: Seconds without a statement after which the server ends a write transaction,
            because its process hangs and other transactions wait for its locks.
        idle_timeout: Seconds after which the server closes an unused connection, which takes 5 MB
            there.
        waits: Observes how long each transaction and query waited for its connection, in seconds.
        share: Share of the connections that one project may use. All of them for the worker role,
            which works for no single project and may hold connections for long.
        partition: The partition whose projects it holds, or `ANY_PARTITION`. A transaction of a
            caller's own project is refused if that is on another one.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        application_name: str = "strata",
        statement_timeout: float = 30.0,
        pool_timeout: float = 10.0,
        prepared_statements: int = 200,
        hung_timeout: float = 10.0,
        idle_timeout: float = 60.0,
        waits: Histogram | None = None,
        share: float = SHARE,
        partition: str = DEFAULT_PARTITION,
    ) -> None:
        self._partition = partition
        self._waits = waits or Histogram()
        self._hung_ms = int(hung_timeout * 1000)
        # A pooler that keeps no prepared statements prepares and executes one for the same
        # connection of the server only inside a transaction.
        self._may_run_alone = prepared_statements > 0
        # Without it, a project with many calls, or with calls that wait for a lock, could use all
        # connections. Calls are limited where they are accepted.
        self._slots = FairSlots(pool_size, "database connections", share=share, queue=ANY_NUMBER)
        self._pool_timeout = pool_timeout
        self.statistics = Statistics()
        self._releases: set[asyncio.Task[None]] = set()
        self._options = SessionOptions(
            url,
            {
                "application_name": application_name,
                "statement_timeout": str(int(statement_timeout * 1000)),
                "idle_in_transaction_session_timeout": "60000",
                "idle_session_timeout": str(int(idle_timeout * 1000)),
                "jit": "off",
                # Ends the statements of disconnected clients soon, which frees their locks.
                "client_connection_check_interval": "2000",
            },
            self.statistics,
            prepared_statements,
        )
        # The connection used last is used next, so that surplus ones of a burst become idle.
        self._connections = _Connections()

    def of_any_partition(self) -> Database:
        """Returns this database, with the same connections, for tables that are of no partition."""
        view = copy(self)
        view._partition = ANY_PARTITION  # noqa: SLF001 - of the same class
        return view

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections.idle) + self._connections.in_use

    @property
    def connections_in_use(self) -> int:
        """Number of connections in use."""
        return self._connections.in_use

    @asynccontextmanager
    async def transaction(
        self,
        *,
        project_id: str | None = None,
        read_only: bool = False,
        snapshot: bool = False,
        generic_plan: bool = False,
        long: bool = False,
    ) -> AsyncIterator[DatabaseConnection]:
        """Runs the block in one transaction that sees one project's rows only.

        It commits when the block ends and rolls back when the block raises.

        Args:
            project_id: The tenant; by default that of the call being served.
            read_only: Refuse writes.
            snapshot: Every statement sees the rows of the same moment; also refuses writes.
            generic_plan: Plan statements once for all values, instead of for the values of each
                call. Useful where planning takes longer than running and the plan does not depend
                on the values.
            long: Allow pauses of up to a minute between statements, for a block that waits for
                other work while it holds locks.

        Raises:
            MissingTenantError: The context has no project.
            FailedPreconditionError: The project of the call is on another partition
                (``PARTITION_NOT_CONFIGURED``).
            UnavailableError: The database cannot be reached; nothing was committed, unless the
                connection broke during the commit itself.
            AbortedError: A deadlock, or a serialization failure.
            DeadlineExceededError: A statement ran into its time limit.
            ResourceExhaustedError: No connection became free in time.
        """
        tenant = self._tenant(project_id)
        begin = "BEGIN READ ONLY" if read_only or snapshot else "BEGIN"
        if snapshot:
            begin += ", ISOLATION LEVEL REPEATABLE READ"
        if snapshot:
            # The first SELECT fixes the moment that is seen.
            begin += f"; SELECT set_config('{TENANT_SETTING}', '{tenant}', true)"
        else:
            # Is not planned, and sends no row.
            begin += f"; SET LOCAL {TENANT_SETTING} = '{tenant}'"
        if generic_plan:
            begin += "; SET LOCAL plan_cache_mode = force_generic_plan"
        async with self._run(begin, tenant, long=long) as connection:
            yield connection

    @asynccontextmanager
    async def system_transaction(
        self, *, read_only: bool = False
    ) -> AsyncIterator[DatabaseConnection]:
        """Runs the block in one transaction without a tenant.

        Row-level security then shows no row, except to a worker role whose policies name the
        few tables it needs. Raises as `transaction` does.
        """
        begin = "BEGIN READ ONLY" if read_only else "BEGIN"
        async with self._run(begin, _NO_TENANT) as connection:
            yield connection

    async def execute(
        self,
        statement: SqlStatement,
        values: Mapping[str, object],
        *,
        project_id: str | None = None,
        read_only: bool = False,
    ) -> StatementResult:
        """Runs one statement of one project as a separate transaction.

        It is atomic, without BEGIN and COMMIT. A caller that is
        cancelled, or whose connection breaks, does not know whether it took effect.

        Args:
            statement: The statement; its parameter ``project`` or ``project_id`` is the tenant.
            values: Its parameters.
            project_id: The tenant; by default that of the call being served.
            read_only: It is a SELECT, which is repeated if its connection breaks.

        Raises: as `transaction` does.
        """
        tenant = self._tenant(project_id)
        name = "project_id" if "project_id" in values else "project"
        bound = {**values, name: tenant}
        if not self._may_run_alone:
            async with self.transaction(project_id=tenant, read_only=read_only) as connection:
                return await connection.execute(statement, bound)
        return await self._run_alone(
            statement.of_tenant(name), bound, tenant=tenant, read_only=read_only
        )

    async def query(self, statement: SqlStatement, **values: object) -> Sequence[Row]:
        """Returns the rows of one SELECT of the calling project.

        Args:
            statement: The statement.
            values: Its parameters, except ``project``, which is added.

        Raises: as `transaction` does.
        """
        bound = {"project": context.current_project(), **values}
        return (await self.execute(statement, bound, read_only=True)).all()

    async def system_execute(
        self, statement: SqlStatement, values: Mapping[str, object] | None = None
    ) -> StatementResult:
        """Runs one statement without a tenant as a separate transaction; see `execute`.

        It sees what `system_transaction` sees. Raises as `transaction` does.
        """
        if not self._may_run_alone:
            async with self.system_transaction() as connection:
                return await connection.execute(statement, values)
        return await self._run_alone(statement, values or {}, read_only=False)

    async def system_query(
        self, statement: SqlStatement, values: Mapping[str, object] | None = None
    ) -> Sequence[Row]:
        """Returns the rows of one SELECT without a tenant, as `system_transaction` sees them.

        It runs outside of a transaction: one round trip instead of three. Use it for queries that
        are repeated often, such as polls. Raises as `transaction` does.
        """
        if not self._may_run_alone:
            async with self.system_transaction(read_only=True) as connection:
                return (await connection.execute(statement, values)).all()
        return (await self._run_alone(statement, values or {}, read_only=True)).all()

    def _tenant(self, project_id: str | None) -> str:
        """Returns the project that a transaction is bound to: by default the call's project."""
        caller = context.current().caller
        if (
            caller is not None
            and caller.partition != self._partition != ANY_PARTITION
            and project_id in (None, caller.project_id)
        ):
            raise not_configured(caller.partition)
        if project_id is None:
            if caller is None:
                raise MissingTenantError("a transaction needs a project")
            project_id = caller.project_id
        if not _PROJECT_ID.fullmatch(project_id):
            raise MissingTenantError("a transaction needs a project with a valid id")
        return project_id

    async def _run_alone(
        self,
        statement: SqlStatement,
        values: Mapping[str, object],
        *,
        read_only: bool,
        tenant: str = _NO_TENANT,
    ) -> StatementResult:
        is_lost = False
        for may_repeat in (True, False):
            session = await self._checkout(tenant, new=is_lost)
            try:
                if tenant != _NO_TENANT:
                    await session.connection.learn_tenant_type()
                result = await session.connection.execute_alone(statement, values)
            except BaseException as error:
                await self._release(session)
                is_harmless = is_lost_connection if read_only else was_not_sent
                if may_repeat and (is_harmless(error) or is_outdated(error)):
                    is_lost = not is_outdated(error)
                    continue
                strata_error = as_strata_error(error)
                if strata_error is None:
                    raise
                raise strata_error from error
            await self._release(session)
            self.statistics.alone += 1
            return result
        raise unavailable()

    async def ping(self) -> None:
        """Makes one round trip.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        await self.system_query(_PING)

    async def close(self) -> None:
        """Closes all connections, after those in use have been returned."""
        self._connections.closed = True
        if self._releases:
            await asyncio.wait(self._releases, timeout=_RELEASE_SECONDS)
        while self._connections.idle:
            await self._connections.idle.pop().close()

    @asynccontextmanager
    async def _run(
        self, begin: str, tenant: str, *, long: bool = False
    ) -> AsyncIterator[DatabaseConnection]:
        if not long and "READ ONLY" not in begin:
            begin += f"; SET LOCAL idle_in_transaction_session_timeout = {self._hung_ms}"
        session = await self._begin(begin, tenant)
        try:
            yield session.connection
        except BaseException as error:
            # The block may use other connections, and one of those may have broken.
            is_of_caller = isinstance(error, OSError) and not session.driver.is_closed()
            await self._shielded(self._abandon(session))
            read_only = "READ ONLY" in begin
            strata_error = None if is_of_caller else as_strata_error(error, read_only=read_only)
            if strata_error is None:
                raise
            raise strata_error from error
        span = None if "READ ONLY" in begin else context.current().span
        try:
            with statement_span(span, "COMMIT"):
                await self._shielded(self._commit(session))
        except Exception as error:
            strata_error = as_strata_error(error)
            if strata_error is None:
                raise
            raise strata_error from error

    async def _begin(self, begin: str, tenant: str) -> _Session:
        """Takes a connection from the pool and begins a transaction.

        A connection that broke in the pool is replaced silently, because no statement has run yet.
        """
        for may_repeat in (True, False):
            # The first attempt is repeated only after a lost connection.
            session = await self._checkout(tenant, new=not may_repeat)
            try:
                await session.driver.execute(begin)
            except BaseException as error:
                await self._shielded(self._abandon(session, may_be_begun=True))
                if may_repeat and is_lost_connection(error):
                    continue
                strata_error = as_strata_error(error)
                if strata_error is None:
                    raise
                raise strata_error from error
            self.statistics.transactions += 1
            return session
        raise unavailable()

    async def _checkout(self, tenant: str, *, new: bool = False) -> _Session:
        """Takes a connection; with `new` none of the pool, because that may be lost, too.

        What ends one connection, such as a restart of the server or the limit of idle time, often
        ends all at the same moment, and the driver notices it later.
        """
        started = time.perf_counter()
        slot = self._slots.slot(tenant)
        try:
            if not slot.acquire_now():
                await self._wait_for(slot)
            return await self._connection(slot, new=new)
        except BaseException:
            slot.release()
            raise
        finally:
            self._waits.observe(time.perf_counter() - started)

    async def _wait_for(self, slot: Slot) -> None:
        try:
            async with asyncio.timeout(self._pool_timeout):
                await slot.acquire()
        except TimeoutError as error:
            raise pool_exhausted() from error

    async def _connection(self, slot: Slot, *, new: bool) -> _Session:
        connections = self._connections
        connections.in_use += 1
        try:
            while connections.idle:
                connection = connections.idle.pop()
                if not (new or connection.driver.is_closed()):
                    return _Session(connection, slot)
                connection.driver.terminate()
            connection = await DatabaseConnection.connect(self._options)
            connection.driver.add_termination_listener(self._forget)
            return _Session(connection, slot)
        except BaseException as error:
            connections.in_use -= 1
            # While connecting, any error of the operating system is one of the database.
            lost = isinstance(error, OSError)
            strata_error = unavailable(str(error)) if lost else as_strata_error(error)
            if strata_error is None:
                raise
            raise strata_error from error

    def _forget(self, closed: object) -> None:
        """Drops an idle connection that was closed, with its prepared statements."""
        connections = self._connections
        connections.idle = [one for one in connections.idle if one.driver is not closed]

    async def _commit(self, session: _Session) -> None:
        committed = False
        try:
            if not session.driver.is_in_transaction():
                raise InternalError("the transaction was ended inside its block")
            # PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, not an error.
            committed = await session.driver.execute("COMMIT") == "COMMIT"
            if not committed:
                raise InternalError("a statement had failed; the transaction was rolled back")
        finally:
            if committed:
                self.statistics.commits += 1
            else:
                self.statistics.rollbacks += 1
            await self._release(session)

    async def _abandon(self, session: _Session, *, may_be_begun: bool = False) -> None:
        self.statistics.rollbacks += 1
        try:
            # After a cancelled BEGIN the driver does not know yet whether it took effect.
            may_be_open = may_be_begun or session.driver.is_in_transaction()
            if not session.driver.is_closed() and may_be_open:
                async with asyncio.timeout(_RELEASE_SECONDS):
                    # After a cancelled statement this first waits for the server to end it.
                    await session.driver.execute("ROLLBACK")
        except Exception as error:  # noqa: BLE001 - the connection is discarded
            _log.warning("rollback failed", error=repr(error))
        finally:
            await self._release(session)

    async def _release(self, session: _Session) -> None:
        """Makes the connection idle if the server confirmed that no transaction is open.

        Otherwise it is closed, so that the next user cannot get a transaction of another tenant.
        """
        connection = session.connection
        if connection.is_unused and not self._connections.closed:
            self._connections.in_use -= 1
            self._connections.idle.append(connection)
            session.slot.release()
        else:
            await self._shielded(self._put_away(session))

    async def _put_away(self, session: _Session) -> None:
        try:
            if session.connection.is_unused:
                await session.connection.close()
            else:
                session.driver.terminate()
        finally:
            self._connections.in_use -= 1
            session.slot.release()

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` to its end even if the caller is cancelled meanwhile."""
        task = asyncio.create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._released)
        await asyncio.shield(task)

    def _released(self, task: asyncio.Task[None]) -> None:
        self._releases.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved; a waiting caller gets it from the shield
