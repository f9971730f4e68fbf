"""Ends, stops and hangs the processes of a running Strata, and makes its database refuse writes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psutil

from faults.comparison import ENGINES, Fault
from faults.live import Live
from faults.turns import MOMENTS, Load
from live import alive

# Part of the command line of each.
PROCESSES = {
    "gateway": "strata.gateway.main",
    "agent_loop": "strata.agent_loop.main",
    "core_memory": "strata.core_memory.main",
    "recall": "strata.recall.main",
    "archival": "strata.archival.main",
    "tool_execution": "strata.tool_execution.main",
    "tool_runner": "strata.tool_runner.main",
    "postgres": "postgres",
    "vectors": "strata.standalone.vectors",
}
_HOWS = {
    "postgres": ("kill", "stop", "hang", "read-only", "full"),
    "vectors": ("kill", "stop", "hang"),
}
_HOWS_OF_SERVICES = ("kill", "kill", "kill", "stop", "hang")
# A service that hangs is left by its callers after five to ten seconds.
_HANG_S = 6.0
_ENGINE_AWAY_S = 3.0
_MOMENT_S = 1.5
_FULL = "faults.full"
# What PostgreSQL says of a full disk, in place of every write, while a file lies in its folder.
_REFUSE_WRITES = f"""
    CREATE SCHEMA faults;
    CREATE FUNCTION faults.refuse() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        IF (pg_stat_file('{_FULL}', true)).size IS NOT NULL THEN
            RAISE EXCEPTION 'could not extend file: No space left on device'
                USING ERRCODE = '53100';
        END IF;
        RETURN NULL;
    END $$;
    DO $$
    DECLARE t record;
    BEGIN
        FOR t IN SELECT c.oid::regclass AS name FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
            AND n.nspname NOT IN ('pg_catalog', 'information_schema')
        LOOP
            EXECUTE format('CREATE TRIGGER refuse_when_full BEFORE INSERT OR UPDATE OR DELETE'
                ' ON %s FOR EACH STATEMENT EXECUTE FUNCTION faults.refuse()', t.name);
        END LOOP;
    END $$;
"""


async def prepare_full_disk(live: Live) -> None:
    """Lets a database refuse every write as if its disk were full, when that is wanted."""
    connection = await asyncpg.connect(live.admin_url)
    try:
        await connection.execute(_REFUSE_WRITES)
    finally:
        await connection.close()


def replicas_of(live: Live, service: str) -> list[psutil.Process]:
    """The processes of a service, or of an engine, that run at the moment."""
    matching = []
    for process in alive(live.tree()[1:]):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            parent = process.parent()
            mark = PROCESSES[service]
            if any(mark in word for word in process.cmdline()) and not (
                # Children of PostgreSQL, and of a service, carry the same command line.
                parent is not None and any(mark in word for word in parent.cmdline())
            ):
                matching.append(process)
    return matching


async def inflict(load: Load, live: Live, faults: int, *, replicas: int) -> None:
    """Inflicts one fault after the other: half at a random time, half while something is under way.

    Args:
        load: The turns.
        live: What is to suffer.
        faults: How many.
        replicas: How many of each service run when all is well.
    """
    chance = random.Random(faults)
    order: list[str] = []
    moments: list[str] = []
    while len(load.faults) < faults:
        order = order or chance.sample(sorted(PROCESSES), len(PROCESSES))
        service = order.pop()
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        if chance.random() < 0.5:
            moments = moments or chance.sample(MOMENTS, len(MOMENTS))
            await load.until_moment(moments.pop(), _MOMENT_S)
        running = replicas_of(live, service)
        if not running or (service not in ENGINES and len(running) < replicas):
            # Still being started again.
            order.insert(0, service)
            continue
        how = chance.choice(_HOWS.get(service, _HOWS_OF_SERVICES))
        fault = Fault(service, how, time.monotonic(), moments=load.moments)
        load.faults.append(fault)
        with contextlib.suppress(psutil.NoSuchProcess):
            await _inflict(fault, chance.choice(running), load, live, replicas)
        # At times the next one comes while the turns have not recovered from this one.
        if chance.random() < 0.5:
            await load.further()
        fault.ended = time.monotonic()


async def _inflict(
    fault: Fault, process: psutil.Process, load: Load, live: Live, replicas: int
) -> None:
    match fault.how:
        case "kill":
            process.kill()
        case "stop" if fault.service == "postgres":
            # The fast shutdown: clients are told so and cut off.
            process.send_signal(signal.SIGINT)
        case "stop":
            process.terminate()
        case "hang":
            family = [process]
            if fault.service == "postgres":
                family += process.children(recursive=True)
            if fault.service in ENGINES:
                await _hang(family, load, 1, _ENGINE_AWAY_S)
            else:
                await _hang(family, load, replicas, _HANG_S)
        case "read-only":
            async with _read_only(live):
                await asyncio.sleep(_ENGINE_AWAY_S)
        case "full":
            async with _full(live.folder.postgres / "data"):
                await asyncio.sleep(_ENGINE_AWAY_S)
        case _:
            raise AssertionError(fault.how)


async def _hang(
    processes: Sequence[psutil.Process], load: Load, replicas: int, seconds: float
) -> None:
    try:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        if replicas > 1:
            # The other replica has to do the work of both until this one is let go.
            await load.further()
        else:
            await asyncio.sleep(seconds)
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def _read_only(live: Live) -> AsyncIterator[None]:
    """Lets the database refuse every write, as after a fail-over to a standby."""
    await _configure(live, "SET default_transaction_read_only = on")
    try:
        yield
    finally:
        await _configure(live, "RESET default_transaction_read_only")


async def _configure(live: Live, change: str) -> None:
    until = time.monotonic() + 60.0
    while True:
        try:
            connection = await asyncpg.connect(live.admin_url)
            try:
                await connection.execute(f"ALTER SYSTEM {change}")
                await connection.execute("SELECT pg_reload_conf()")
            finally:
                await connection.close()
        except (OSError, asyncpg.PostgresError):
            # It is being started again after the fault before.
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
        else:
            return


@asynccontextmanager
async def _full(data: Path) -> AsyncIterator[None]:
    mark = data / _FULL
    mark.touch()
    try:
        yield
    finally:
        mark.unlink()
