"""Counts the costs of a turn: SQL statements, commits, calls between services.

The product does not depend on it. Statements pass `DatabaseConnection.execute_alone`;
BEGIN and COMMIT are taken from the driver's query log.
A statement outside of a transaction block commits itself. `application_name` identifies the
service. Background work has no request (the search for waiting runs, the indexer), or calls other
services as a caller of `ProjectCallers` (a deletion that is repeated).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import asyncpg
import pytest
from asyncpg.connection import LoggedQuery

from strata.gateway.project_callers import ProjectCallers
from strata.gateway.runs.events import live_run
from strata.shared.context import Caller, current
from strata.shared.db.connections import DatabaseConnection, SessionOptions, StatementResult
from strata.shared.db.statements import SqlStatement
from strata.shared.metric_names import RPC_IN_FLIGHT, RPC_REQUESTS
from strata.shared.search import result_merge
from strata.shared.telemetry import Telemetry

INTERNAL_METHODS = frozenset(
    {
        "ExecuteRun",
        "Compile",
        "BeginTurn",
        "ResolveTools",
        "GetAgentStats",
        "ExecuteTools",
        "CommitStep",
    }
)
"""The internal calls of a turn; tools call the public services, which are not listed."""

_WRITES = re.compile(r"\b(INSERT INTO|DELETE FROM|UPDATE (?!OF|SKIP)\w+\.\w+)\b")
_SETTLE_S = 30.0
_LONG_S = 600.0


def wait_for_following_events(patch: pytest.MonkeyPatch) -> None:
    """Makes the number of statements and commits of a turn independent of the time it takes.

    The start of a run is stored with the first step, and a stored message with the event after it.
    A search reads the results of the index in the transaction in which it began.

    The start of a step or a call is different: it is stored before the next event, or with it if
    that follows soon. A test has to decide which, see `store_events_at_the_end`.
    """
    patch.setattr(live_run, "_START_DELAY_S", _LONG_S)
    patch.setattr(live_run, "_MESSAGE_DELAY_S", _LONG_S)
    patch.setattr(result_merge, "_HELD_SECONDS", _LONG_S)


def store_events_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Makes a turn store all its events with its end, for tests that compare the costs of turns."""
    wait_for_following_events(patch)
    patch.setattr(live_run, "_DELAY_S", _LONG_S)


@dataclass(repr=False)
class Cost:
    """The work done for calls and, separately, the background work of the services.

    Attributes:
        statements: (service's role, first line of the SQL), in order.
        control: BEGIN and COMMIT, by service's role.
        commits: Transactions that could write and were committed, by service's role.
        reads: Transactions that could not write, by service's role.
        background: Statements that belong to no call.
        rpcs: Calls served, by method.
    """

    statements: list[tuple[str, str]] = field(default_factory=list)
    control: Counter[str] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    background: list[tuple[str, str]] = field(default_factory=list)
    rpcs: Counter[str] = field(default_factory=Counter)

    @property
    def sql(self) -> int:
        """The number of statements, with BEGIN and COMMIT."""
        return len(self.statements) + self.control.total()

    @property
    def lasting(self) -> list[tuple[str, str]]:
        """The statements that every turn executes, however fast the machine.

        Reads of the API key and of the active index are left out, because their results are cached
        for some seconds.
        """
        return [
            (service, sql)
            for service, sql in self.statements
            if "secret_hash" not in sql and "serving_indexes WHERE" not in sql
        ]

    @property
    def lasting_sql(self) -> int:
        """The statements of `lasting`, with BEGIN and COMMIT."""
        return len(self.lasting) + self.control.total()

    @property
    def writes(self) -> int:
        """Commits of transactions that could write."""
        return self.commits.total()

    @property
    def internal(self) -> Counter[str]:
        """The internal calls of the turn, by method."""
        return Counter({name: n for name, n in self.rpcs.items() if name in INTERNAL_METHODS})

    def shape(self) -> tuple[Counter[tuple[str, str]], Counter[str], Counter[str]]:
        """Everything that must not depend on the length of the history.

        See `lasting` for the statements.
        """
        return Counter(self.lasting), self.commits, self.internal

    def __repr__(self) -> str:
        # The text of a failed assertion.
        total = (
            f"{self.sql} statements, of which BEGIN and COMMIT {dict(self.control)},"
            f" {self.writes} commits {dict(self.commits)},"
            f" {self.internal.total()} internal calls {dict(self.internal)},"
            f" {self.reads.total()} read-only transactions {dict(self.reads)},"
            f" calls {dict(self.rpcs)},"
            f" {len(self.background)} background statements"
        )
        lines = [total]
        lines += [f"  {service}: {sql}" for service, sql in self.statements]
        lines += [f"  (background) {service}: {sql}" for service, sql in self.background]
        return "\n".join(lines)


class SqlMeter:
    """Counts the statements of databases.

    Attributes:
        databases: Ports and names of the databases. Services of other tests may run in this
            process, and work while a test measures.
    """

    def __init__(self, databases: Iterable[tuple[int | None, str | None]] = ()) -> None:
        self.databases = set(databases)
        self._cost: Cost | None = None
        self._background_principals: set[str] = set()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watches the connections that are made inside the block."""
        execute, connect = DatabaseConnection.execute_alone, DatabaseConnection.connect

        async def counted(
            connection: DatabaseConnection, statement: SqlStatement, values: Mapping[str, object]
        ) -> StatementResult:
            self._statement(connection.driver, statement.text)
            return await execute(connection, statement, values)

        async def watched(options: SessionOptions) -> DatabaseConnection:
            connection = await connect(options)
            self._connected(connection.driver)
            return connection

        caller_of = ProjectCallers.of

        async def noted(
            callers: ProjectCallers, project_id: str, principal: str, scopes: Iterable[str]
        ) -> Caller | None:
            self._background_principals.add(principal)
            return await caller_of(callers, project_id, principal, scopes)

        with (
            patch.object(DatabaseConnection, "execute_alone", counted),
            patch.object(DatabaseConnection, "connect", watched),
            patch.object(ProjectCallers, "of", noted),
        ):
            yield

    def into(self, cost: Cost | None) -> None:
        """Counts into `cost` from now on."""
        self._cost = cost

    def _statement(self, driver: asyncpg.Connection[Any], sql: str) -> None:
        if self._cost is None or not self._watches(driver):
            return
        service = _service(driver)
        is_of_call = self._serves_call()
        kind = self._cost.statements if is_of_call else self._cost.background
        kind.append((service, " ".join(sql.split())[:100]))
        if is_of_call and not driver.is_in_transaction():
            counted = self._cost.commits if _WRITES.search(sql) else self._cost.reads
            counted[service] += 1

    def _connected(self, driver: asyncpg.Connection[Any]) -> None:
        service, begun = _service(driver), [""]

        def seen(logged: LoggedQuery) -> None:
            is_begin = logged.query.startswith("BEGIN")
            if is_begin:
                begun[0] = logged.query
            if self._cost is None or not (self._serves_call() and self._watches(driver)):
                return
            if is_begin or logged.query == "COMMIT":
                self._cost.control[service] += 1
            if logged.query == "COMMIT":
                read_only = begun[0].startswith("BEGIN READ ONLY")
                (self._cost.reads if read_only else self._cost.commits)[service] += 1

        driver.add_query_logger(seen)

    def _serves_call(self) -> bool:
        context = current()
        caller = context.caller
        return bool(context.request_id) and (
            caller is None or caller.principal not in self._background_principals
        )

    def _watches(self, driver: Any) -> bool:
        # asyncpg has no public attribute for them.
        return (driver._addr[1], driver._params.database) in self.databases


def _service(driver: asyncpg.Connection[Any]) -> str:
    name: str = driver.get_settings().application_name
    return name.removeprefix("strata-")


class Meter:
    """SQL and calls of a set of services.

    Args:
        sql: Watches their databases.
        telemetry: Where all of them count their calls.
    """

    def __init__(self, sql: SqlMeter, telemetry: Telemetry) -> None:
        self._sql = sql
        self._telemetry = telemetry

    @asynccontextmanager
    async def measure(self) -> AsyncIterator[Cost]:
        """Counts the costs of the block until all calls that it has started have ended."""
        await self.idle()
        cost, before = Cost(), self._served()
        self._sql.into(cost)
        try:
            yield cost
            await self.idle()
        finally:
            self._sql.into(None)
        cost.rpcs = self._served() - before

    async def idle(self) -> None:
        """Waits until no call is being served."""
        async with asyncio.timeout(_SETTLE_S):
            quiet = 0
            # Ends of streams, and the driver's log, arrive a few iterations of the loop later.
            while quiet < 3:
                quiet = quiet + 1 if self._telemetry.total(RPC_IN_FLIGHT) == 0 else 0
                await asyncio.sleep(0.01)

    def _served(self) -> Counter[str]:
        served: Counter[str] = Counter()
        for sample in self._telemetry.samples():
            if sample.name == RPC_REQUESTS:
                method = sample.labels["method"].rpartition("/")[2]
                served[method] += round(getattr(sample.metric, "value", 0))
        return served
