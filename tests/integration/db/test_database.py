"""Transactions, in normal operation and after failures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import psutil
import pytest

from polling import eventually
from span_records import SpanRecorder, traced
from strata.protocol.errors import (
    AbortedError,
    DeadlineExceededError,
    InternalError,
    Reason,
    ResourceExhaustedError,
    UnavailableError,
)
from strata.shared.db import Database, sql
from strata.standalone.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from conftest import ServiceDatabase

P = "project-a"
INSERT = sql("INSERT INTO example.notes (project_id, note_id, body) VALUES ('project-a', :n, '')")
# One cluster serves all tests, and a session that another test closed may not have ended yet.
SESSIONS = "application_name = 'strata' AND datname = current_database()"
NOTES = sql("SELECT note_id FROM example.notes ORDER BY note_id")
NOTES_OF = sql("SELECT note_id FROM example.notes WHERE project_id = :project")


async def _notes(database: Database) -> list[str]:
    async with database.transaction(project_id=P) as connection:
        return list((await connection.execute(NOTES)).scalars())


async def test_a_block_commits_as_a_whole(database: Database) -> None:
    async with database.transaction(project_id=P) as connection:
        await connection.execute(INSERT, {"n": "1"})
        await connection.execute(INSERT, {"n": "2"})

    assert await _notes(database) == ["1", "2"]


async def test_an_exception_rolls_the_transaction_back_and_is_raised_unchanged(
    database: Database,
) -> None:
    async def fail() -> None:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(INSERT, {"n": "1"})
            raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        await fail()

    assert await _notes(database) == []
    assert database.statistics.rollbacks == 1


async def test_a_violated_constraint_is_raised_as_an_integrity_error(database: Database) -> None:
    async with database.transaction(project_id=P) as connection:
        await connection.execute(INSERT, {"n": "1"})

    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        async with database.transaction(project_id=P) as connection:
            await connection.execute(INSERT, {"n": "1"})


async def test_undone_statements_keep_the_rest_of_the_transaction(database: Database) -> None:
    async with database.transaction(project_id=P) as connection:
        await connection.execute(INSERT, {"n": "1"})
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            async with connection.undone():
                await connection.execute(INSERT, {"n": "1"})
        async with connection.undone():
            await connection.execute(INSERT, {"n": "3"})
        await connection.execute(INSERT, {"n": "4"})

    assert await _notes(database) == ["1", "4"]
    assert database.statistics.connections == 1


async def test_a_read_only_block_refuses_writes(database: Database) -> None:
    with pytest.raises(asyncpg.PostgresError, match="read-only transaction"):
        async with database.transaction(project_id=P, read_only=True) as connection:
            await connection.execute(INSERT, {"n": "1"})


@pytest.mark.parametrize(
    "state",
    ["53100", "53200", "53300", "57P03", "58030"],
    ids=["full disk", "no memory", "no connections", "starting", "input and output"],
)
async def test_a_server_that_cannot_work_now_is_unavailable(database: Database, state: str) -> None:
    fail = f"DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END $$"
    with pytest.raises(UnavailableError) as raised:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(sql(fail))
    assert raised.value.retry_after
    assert "not now" not in raised.value.message
    assert raised.value.detail == "not now"


async def test_a_server_that_is_read_only_is_unavailable(database: Database) -> None:
    async def write() -> None:
        async with database.transaction(project_id=P) as connection:
            # Like on a standby: the transaction was not begun as a read-only one.
            await connection.execute(sql("SET LOCAL transaction_read_only = on"))
            await connection.execute(INSERT, {"n": "1"})

    with pytest.raises(UnavailableError) as raised:
        await write()
    assert raised.value.retry_after


async def test_a_snapshot_sees_one_state_and_refuses_writes(database: Database) -> None:
    count = sql("SELECT count(*) FROM example.notes")
    async with database.transaction(project_id=P, snapshot=True) as connection:
        async with database.transaction(project_id=P) as other:
            await other.execute(INSERT, {"n": "1"})
        assert (await connection.execute(count)).scalar() == 0
    with pytest.raises(asyncpg.PostgresError, match="read-only transaction"):
        async with database.transaction(project_id=P, snapshot=True) as connection:
            await connection.execute(INSERT, {"n": "2"})
    assert await _notes(database) == ["1"]


async def test_a_generic_plan_is_forced_for_one_transaction_only(database: Database) -> None:
    mode = sql("SHOW plan_cache_mode")
    async with database.transaction(project_id=P, snapshot=True, generic_plan=True) as connection:
        assert (await connection.execute(mode)).scalar() == "force_generic_plan"
        assert list((await connection.execute(NOTES)).scalars()) == []
    async with database.transaction(project_id=P) as connection:
        assert (await connection.execute(mode)).scalar() == "auto"


async def test_a_transaction_with_a_suppressed_error_is_not_committed(database: Database) -> None:
    async def swallow() -> None:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(INSERT, {"n": "1"})
            with contextlib.suppress(asyncpg.PostgresError):
                await connection.execute(sql("SELECT 1 / 0"))

    with pytest.raises(InternalError, match="rolled back"):
        await swallow()
    assert await _notes(database) == []


async def test_a_block_that_ends_its_transaction_raises_an_error(database: Database) -> None:
    with pytest.raises(InternalError, match="ended inside"):
        async with database.transaction(project_id=P) as connection:
            await connection.execute(sql("COMMIT"))


async def test_json_values_are_returned_unchanged(database: Database) -> None:
    held = '{"a": [1, null, "\u00e9\u4e2d"]}'
    async with database.transaction(project_id=P) as connection:
        rows = await connection.execute(sql("SELECT CAST(:x AS jsonb)"), {"x": held})
        assert rows.scalar() == {"a": [1, None, "é中"]}


async def test_connections_ask_for_built_in_types_once(
    urls: ServiceDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[int]] = []
    driver: Any = asyncpg.Connection
    ask = driver._introspect_types

    async def counted(connection: Any, types: Iterable[int], *timeout: Any) -> Any:
        asked.append(set(types))
        return await ask(connection, types, *timeout)

    monkeypatch.setattr(driver, "_introspect_types", counted)
    built_in = sql("SELECT CAST(:numbers AS smallint[]), CAST(:parts AS bytea[])")
    values = {"numbers": [1, None, -2], "parts": [b"\x00", b"", None]}
    own = sql("SELECT CAST(ARRAY['x'] AS strata.tenant[])")
    counts = []
    for _ in range(2):
        opened = Database(urls.service_url, pool_size=1)
        async with opened.transaction(project_id=P) as connection:
            for _ in range(2):
                assert tuple((await connection.execute(built_in, values)).one()) == (
                    values["numbers"],
                    values["parts"],
                )
            counts.append(len(asked))
            assert (await connection.execute(own)).scalar() == ["x"]
            counts.append(len(asked))
        await opened.close()
    # Types of a database may have other numbers in another one: each connection asks for them.
    assert counts == [1, 2, 2, 3]


async def test_urls_have_the_options_of_libpq(urls: ServiceDatabase) -> None:
    plain = Database(f"{urls.service_url}?sslmode=disable", pool_size=1)
    encrypted = Database(f"{urls.service_url}?sslmode=require", pool_size=1)
    try:
        await plain.ping()
        with pytest.raises(UnavailableError):
            await encrypted.ping()
    finally:
        await plain.close()
        await encrypted.close()


async def test_values_of_a_row_have_positions_and_names(database: Database) -> None:
    statement = sql(
        """SELECT n AS number, CAST('{"a": [1]}' AS jsonb) AS json, ARRAY['x', NULL] AS texts,
        CAST('\\x00ff' AS bytea) AS bytes, :text || n AS text, CAST('[2]' AS json) AS list
        FROM generate_series(1, 2) AS n"""
    )
    async with database.transaction(project_id=P) as connection:
        rows = (await connection.execute(statement, {"text": "é"})).all()
    values = (1, {"a": [1]}, ["x", None], b"\x00\xff", "é1", [2])
    assert tuple(rows[0]) == values
    assert dict(rows[0]) == dict(
        zip(("number", "json", "texts", "bytes", "text", "list"), values, strict=True)
    )
    assert (rows[1].number, rows[1]["number"], rows[1][0]) == (2, 2, 2)
    assert getattr(rows[0], "other", None) is None


async def test_a_result_with_another_number_of_rows_is_an_error(database: Database) -> None:
    async with database.transaction(project_id=P) as connection:
        await connection.execute(INSERT, {"n": "1"})
        assert (await connection.execute(NOTES)).one().note_id == "1"
        assert (await connection.execute(NOTES)).scalar_one() == "1"
        await connection.execute(INSERT, {"n": "2"})
        both = await connection.execute(NOTES)
        none = await connection.execute(sql("SELECT note_id FROM example.notes WHERE false"))
    for read in (both.one, both.one_or_none, both.scalar_one, none.one, none.scalar_one):
        with pytest.raises(LookupError):
            read()
    assert (none.first(), none.one_or_none(), none.scalar(), none.scalar_one_or_none()) == (
        (None,) * 4
    )
    assert both.scalars() == ["1", "2"]


async def test_statements_and_commits_are_counted_exactly(database: Database) -> None:
    with database.statistics.record() as texts:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(INSERT, {"n": "1"})
            await connection.execute(NOTES)
            await connection.execute(INSERT, {"n": "2"})
        async with database.system_transaction():
            pass

    statistics = database.statistics
    assert [text.split()[0] for text in texts] == ["INSERT", "SELECT", "INSERT"]
    assert (statistics.transactions, statistics.statements) == (2, 3)
    assert (statistics.commits, statistics.rollbacks) == (2, 0)
    assert statistics.round_trips == 7


async def test_a_query_without_a_tenant_costs_one_round_trip_and_returns_no_rows(
    database: Database,
) -> None:
    async with database.transaction(project_id=P) as connection:
        await connection.execute(INSERT, {"n": "1"})
    before = database.statistics.round_trips

    assert await database.system_query(NOTES) == []
    assert (await database.system_query(sql("SELECT 1 AS one")))[0].one == 1
    assert database.statistics.round_trips == before + 2
    assert await _notes(database) == ["1"]


async def test_after_a_cancelled_query_its_connection_can_be_used(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, pool_size=1)
    try:
        query = asyncio.create_task(database.system_query(sql("SELECT pg_sleep(30)")))
        await asyncio.sleep(0.1)
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query
        async with asyncio.timeout(10):
            assert await _notes(database) == []
    finally:
        await database.close()


async def test_a_plain_transaction_sends_the_counted_statements(
    database: Database, urls: ServiceDatabase
) -> None:
    """The transaction count of the server equals ours: the driver adds none."""
    await _notes(database)
    watcher = await asyncpg.connect(urls.admin_url)
    try:
        query = f"SELECT pid, state, query FROM pg_stat_activity WHERE {SESSIONS}"
        async with database.transaction(project_id=P) as connection:
            await connection.execute(NOTES)
            (row,) = await watcher.fetch(query)
            assert row["state"] == "idle in transaction"
        (row,) = await watcher.fetch(query)
        assert (row["state"], row["query"]) == ("idle", "COMMIT")
    finally:
        await watcher.close()


@pytest.mark.parametrize("twice", [False, True])
async def test_a_cancelled_block_leaves_no_open_transaction(
    database: Database, urls: ServiceDatabase, twice: bool
) -> None:
    async def work(number: int) -> None:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(INSERT, {"n": str(number)})
            await connection.execute(sql("SELECT pg_sleep(60)"))

    tasks = [asyncio.create_task(work(number)) for number in range(4)]
    await _until_asleep(urls.admin_url, 4)
    for task in tasks:
        task.cancel()
    if twice:
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(end, asyncio.CancelledError) for end in ended)
    for _ in range(8):
        assert await _notes(database) == []
    await _until_idle(urls.admin_url)
    assert database.statistics.connections == 4, "a cancelled caller releases its connection"


async def _until_asleep(url: str, count: int) -> None:
    """Waits until so many sessions of the pool are in `pg_sleep`."""
    watcher = await asyncpg.connect(url)
    try:
        asleep = (
            f"SELECT count(*) FROM pg_stat_activity WHERE {SESSIONS} AND wait_event = 'PgSleep'"
        )
        async with asyncio.timeout(30):
            while await watcher.fetchval(asleep) < count:
                await asyncio.sleep(0.02)
    finally:
        await watcher.close()


async def _until_idle(url: str) -> None:
    """Waits until no session of the pool is in a transaction."""
    watcher = await asyncpg.connect(url)
    try:
        busy = f"SELECT count(*) FROM pg_stat_activity WHERE {SESSIONS} AND state <> 'idle'"
        async with asyncio.timeout(30):
            while await watcher.fetchval(busy):
                await asyncio.sleep(0.02)
    finally:
        await watcher.close()


async def test_a_cancellation_at_any_step_leaves_no_partial_change(database: Database) -> None:
    async def work(number: int) -> None:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(INSERT, {"n": f"{number:03}-a"})
            await connection.execute(INSERT, {"n": f"{number:03}-b"})

    assert await _notes(database) == []
    finished = set()
    for number in range(500):  # cancelled later each time, until the commit was first ten times
        task = asyncio.create_task(work(number))
        # On a slow machine the steps get longer.
        await asyncio.sleep(number * 0.0002 * max(1.0, number / 100))
        task.cancel()
        (end,) = await asyncio.gather(task, return_exceptions=True)
        if end is None:
            finished.add(f"{number:03}")
        if len(finished) == 10:
            break

    notes = await _notes(database)
    pairs = {note[:3] for note in notes}
    assert len(notes) == 2 * len(pairs)
    assert len(finished) == 10
    assert finished <= pairs


async def test_after_a_cancelled_reader_the_next_transaction_can_write(
    urls: ServiceDatabase,
) -> None:
    database = Database(urls.service_url, pool_size=1)

    async def read() -> None:
        async with database.transaction(project_id=P, read_only=True):
            pass

    try:
        for number in range(300):  # cancelled at each of its first steps, repeatedly
            task = asyncio.create_task(read())
            for _ in range(number % 12):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with database.transaction(project_id=P) as connection:
                await connection.execute(INSERT, {"n": str(number)})
        assert len(await _notes(database)) == 300
        assert database.statistics.connections == 1, "a cancelled caller releases its connection"
    finally:
        await database.close()


async def test_a_full_pool_is_an_error_with_a_retry_hint(
    urls: ServiceDatabase,
) -> None:
    database = Database(urls.service_url, pool_size=1, pool_timeout=0.05)
    try:
        async with database.transaction(project_id=P):
            with pytest.raises(ResourceExhaustedError) as busy:
                await _notes(database)
        assert busy.value.retry_after is not None
        assert await _notes(database) == []
    finally:
        await database.close()


async def test_one_project_cannot_take_all_connections(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, pool_size=4, pool_timeout=10.0)
    may_end = asyncio.Event()

    async def hold() -> None:
        async with database.transaction(project_id=P):
            await may_end.wait()

    flood = [asyncio.create_task(hold()) for _ in range(20)]
    try:
        await eventually(lambda: database.connections_in_use == 3)
        async with database.transaction(project_id="project-b") as connection:
            assert (await connection.execute(NOTES)).all() == []
        result = await database.execute(NOTES_OF, {"project": "project-b"}, project_id="project-b")
        assert result.all() == []
        assert not any(task.done() for task in flood)
        may_end.set()
        await asyncio.gather(*flood)
    finally:
        may_end.set()
        await database.close()


async def test_a_free_connection_goes_to_the_project_that_uses_fewest(
    urls: ServiceDatabase,
) -> None:
    database = Database(urls.service_url, pool_size=2)
    order: list[str] = []
    may_end = asyncio.Event()

    async def hold() -> None:
        async with database.transaction(project_id=P):
            await may_end.wait()

    async def use(project_id: str) -> None:
        async with database.transaction(project_id=project_id):
            order.append(project_id)

    try:
        held = [asyncio.create_task(hold()) for _ in range(2)]
        await eventually(lambda: database.connections_in_use == 2)
        waiting = [asyncio.create_task(use(P)) for _ in range(10)]
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(use("project-b")))
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(*held, *waiting)
    finally:
        await database.close()

    assert order.index("project-b") <= 1


async def test_a_cancelled_waiter_takes_no_connection(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, pool_size=1, pool_timeout=10.0)
    try:
        async with database.transaction(project_id=P):
            waiter = asyncio.create_task(_notes(database))
            await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        assert await _notes(database) == []
    finally:
        await database.close()


async def test_a_statement_has_a_time_limit(urls: ServiceDatabase) -> None:
    # Long enough for the statements that must not exceed it.
    database = Database(urls.service_url, statement_timeout=2.0)
    try:
        with pytest.raises(DeadlineExceededError):
            async with database.transaction(project_id=P) as connection:
                await connection.execute(sql("SELECT pg_sleep(60)"))
        assert await _notes(database) == []
    finally:
        await database.close()


async def test_process_that_hangs_in_a_transaction_loses_its_locks(
    urls: ServiceDatabase, database: Database
) -> None:
    """SIGSTOP leaves the connection open, so PostgreSQL has to detect the silence."""
    # Long enough for the pauses between the statements that precede.
    hanging = Database(urls.service_url, hung_timeout=2.0)
    locked, goes_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        async with hanging.transaction(project_id=P) as connection:
            await connection.execute(sql("SELECT pg_advisory_xact_lock(7)"))
            locked.set()
            await goes_on.wait()
            await connection.execute(sql("SELECT 1"))

    try:
        hung = asyncio.create_task(hang())
        await locked.wait()
        async with database.transaction(project_id=P) as connection:
            await connection.execute(sql("SELECT pg_advisory_xact_lock(7)"))
        goes_on.set()
        # The statements before it were rolled back, so it may be repeated.
        with pytest.raises(UnavailableError):
            await hung
        assert await _notes(hanging) == []
    finally:
        await hanging.close()


async def test_the_loser_of_a_deadlock_gets_a_retryable_error(database: Database) -> None:
    locked = asyncio.Barrier(2)

    async def work(first: int, second: int) -> None:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(sql(f"SELECT pg_advisory_xact_lock({first})"))
            await locked.wait()
            await connection.execute(sql(f"SELECT pg_advisory_xact_lock({second})"))

    ends = await asyncio.gather(work(1, 2), work(2, 1), return_exceptions=True)

    assert sorted(type(end).__name__ for end in ends) == ["AbortedError", "NoneType"]
    assert any(isinstance(end, AbortedError) for end in ends)


async def _terminate_sessions(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        ended = await connection.fetch(
            "SELECT pid, pg_terminate_backend(pid, 30000) AS done FROM pg_stat_activity"
            f" WHERE {SESSIONS}"
        )
    finally:
        await connection.close()
    assert ended
    assert all(row["done"] for row in ended)
    await _until_gone([row["pid"] for row in ended])


async def _until_gone(pids: Iterable[int]) -> None:
    """Waits until server processes are gone, and our loop has seen their sockets close."""
    await eventually(lambda: not any(map(psutil.pid_exists, pids)))
    await asyncio.sleep(0.1)


async def test_broken_connections_in_the_pool_are_replaced_silently(
    database: Database, urls: ServiceDatabase
) -> None:
    await asyncio.gather(*(_notes(database) for _ in range(4)))
    await _terminate_sessions(urls.admin_url)

    assert await asyncio.gather(*(_notes(database) for _ in range(4))) == [[]] * 4

    await _terminate_sessions(urls.admin_url)
    assert await database.system_query(NOTES) == []


async def test_connections_to_a_machine_that_is_gone_are_ended_by_the_kernel(
    database: Database,
) -> None:
    """A test cannot drop packets without root, so it reads the limits that the kernel was given."""
    async with database.transaction(project_id=P) as connection:
        driver: Any = connection.driver
        connected = driver._transport.get_extra_info("socket")
        probed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        limits = [
            connected.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
        ]

    assert probed == 1
    assert limits == [10, 5, 20_000]


async def test_connections_that_a_burst_needed_are_closed_when_idle(
    urls: ServiceDatabase,
) -> None:
    # One project uses four of five connections.
    database = Database(urls.service_url, pool_size=5, application_name="idle", idle_timeout=0.5)
    sessions = sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'idle'")
    watching = Database(urls.service_url, pool_size=1)

    async def open_sessions() -> list[int]:
        async with watching.transaction(project_id=P) as connection:
            return list((await connection.execute(sessions)).scalars())

    try:
        async with AsyncExitStack() as burst:
            for _ in range(4):
                await burst.enter_async_context(database.transaction(project_id=P))
            opened = await open_sessions()
            assert len(opened) == 4
        while await open_sessions():
            await asyncio.sleep(0.05)
        await _until_gone(opened)
        # They are dropped with their prepared statements, and not counted any more.
        while database.connections:
            await asyncio.sleep(0.01)
        assert await asyncio.gather(*(_notes(database) for _ in range(4))) == [[]] * 4
    finally:
        await database.close()
        await watching.close()


async def test_sequential_callers_reuse_one_connection(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, pool_size=4)
    backend = sql("SELECT pg_backend_pid()")
    try:
        await asyncio.gather(*(_notes(database) for _ in range(4)))
        used = set()
        for _ in range(6):
            async with database.transaction(project_id=P) as connection:
                used.add((await connection.execute(backend)).scalar_one())
        assert len(used) == 1
    finally:
        await database.close()


@pytest.mark.parametrize("before_commit", [False, True])
async def test_a_connection_lost_during_a_transaction_is_unavailable(
    database: Database, urls: ServiceDatabase, before_commit: bool
) -> None:
    async def lose() -> None:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(INSERT, {"n": "1"})
            await _terminate_sessions(urls.admin_url)
            if not before_commit:
                await connection.execute(INSERT, {"n": "2"})

    with pytest.raises(UnavailableError) as lost:
        await lose()

    assert lost.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert await _notes(database) == []


async def test_errors_of_the_block_are_not_mapped_to_database_errors(database: Database) -> None:
    for own in (TimeoutError("own"), ConnectionRefusedError("own"), FileNotFoundError("own")):
        with pytest.raises(type(own), match="own"):
            async with database.transaction(project_id=P):
                raise own


async def test_an_unreachable_database_is_unavailable() -> None:
    database = Database("postgresql://someone:secret@127.0.0.1:1/none")
    try:
        with pytest.raises(UnavailableError) as away:
            await database.ping()
        assert "secret" not in str(away.value)
    finally:
        await database.close()


async def test_a_pooler_that_moves_connections_can_be_used(urls: ServiceDatabase) -> None:
    database = Database(urls.service_url, pool_size=1, prepared_statements=0)
    try:
        for _ in range(3):
            assert await _notes(database) == []
        async with database.transaction(project_id=P) as connection:
            kept = await connection.execute(sql("SELECT count(*) FROM pg_prepared_statements"))
            # Only the query itself; nothing of earlier transactions is left on the server.
            assert kept.scalar() == 1
    finally:
        await database.close()


async def test_a_statement_is_planned_once_and_kept_on_its_connection(
    urls: ServiceDatabase,
) -> None:
    database = Database(urls.service_url, pool_size=1)
    try:
        for _ in range(3):
            assert await _notes(database) == []
        async with database.transaction(project_id=P) as connection:
            kept = await connection.execute(
                sql("SELECT count(*) FROM pg_prepared_statements WHERE statement = :statement"),
                {"statement": NOTES.text},
            )
            assert kept.scalar() == 1
    finally:
        await database.close()


async def test_no_acknowledged_commit_is_lost_when_the_server_is_killed(
    open_folder: Path,
) -> None:
    server = EmbeddedPostgres(open_folder / "postgres")
    await server.start()
    database = Database(server.url(), pool_size=4)
    acknowledged: set[int] = set()
    try:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(sql("CREATE TABLE kept (number int PRIMARY KEY)"))

        async def write(first: int) -> None:
            for number in range(first, 100_000, 4):
                try:
                    async with database.transaction(project_id=P) as connection:
                        await connection.execute(
                            sql("INSERT INTO kept VALUES (:number)"), {"number": number}
                        )
                except UnavailableError:
                    return
                acknowledged.add(number)

        writers = [asyncio.create_task(write(first)) for first in range(4)]
        await eventually(lambda: len(acknowledged) >= 100)
        killed = server.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await asyncio.gather(*writers)
        while server.pid == killed:  # until its end is noticed
            await asyncio.sleep(0.01)
        await server.wait_serving()

        async with database.transaction(project_id=P) as connection:
            kept = set((await connection.execute(sql("SELECT number FROM kept"))).scalars())
        assert acknowledged <= kept
    finally:
        await database.close()
        await server.stop()


async def test_statements_of_a_traced_call_are_spans_without_their_values(
    database: Database,
) -> None:
    recorder = SpanRecorder()
    with traced(recorder) as call:
        async with database.transaction(project_id=P) as connection:
            await connection.execute(INSERT, {"n": "secret-1"})
            await connection.execute(INSERT, {"n": "secret-2"})
        assert await _notes(database) == ["secret-1", "secret-2"]
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            async with database.transaction(project_id=P) as connection:
                await connection.execute(INSERT, {"n": "secret-1"})
    assert [(span.name, span.error_type) for span in recorder.spans] == [
        ("INSERT example.notes", ""),
        ("INSERT example.notes", ""),
        ("COMMIT", ""),
        ("SELECT example.notes", ""),
        ("COMMIT", ""),
        ("INSERT example.notes", "23505"),
    ]
    assert {span.parent_id for span in recorder.spans} == {call.span_id}
    assert "secret" not in recorder.texts()
    # They are counted like statements without a trace.
    assert database.statistics.statements == 4
    assert database.statistics.commits == 2


async def test_statements_of_a_read_only_transaction_have_no_commit(database: Database) -> None:
    recorder = SpanRecorder()
    with traced(recorder):
        async with database.transaction(project_id=P, read_only=True) as connection:
            await connection.execute(NOTES)
        await database.system_query(sql("SELECT 1"))
    assert [span.name for span in recorder.spans] == ["SELECT example.notes", "SELECT"]
