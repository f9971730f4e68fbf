"""Kills, stops and suspends processes of a running Strata, and makes its database refuse writes."""

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
from faults.victims import PROCESSES, replicas_of

_HOWS = {
    "postgres": ("kill", "stop", "hang", "read-only", "full"),
    "vectors": ("kill", "stop", "hang"),
}
_HOWS_OF_SERVICES = ("kill", "kill", "kill", "stop", "hang")
# Calls to a suspended service time out after five to ten seconds.
_HANG_S = 6.0
_ENGINE_AWAY_S = 3.0
_MOMENT_S = 1.5
_FULL = "faults.full"
# While this file exists in PostgreSQL's folder, every write fails with the error of a full disk.
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
    """Installs triggers that refuse every write, as with a full disk, while `_full` is active."""
    connection = await asyncpg.connect(live.admin_url)
    try:
        await connection.execute(_REFUSE_WRITES)
    finally:
        await connection.close()


async def inflict(load: Load, live: Live, faults: int, *, replicas: int) -> None:
    """Causes faults one after another: half at random times, half during a certain operation.

    Args:
        load: The turns.
        live: The system.
        faults: Number of faults.
        replicas: Number of replicas of each service without faults.
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
            # It is still restarting.
            order.insert(0, service)
            continue
        how = chance.choice(_HOWS.get(service, _HOWS_OF_SERVICES))
        fault = Fault(service, how, time.monotonic(), moments=load.moments)
        load.faults.append(fault)
        with contextlib.suppress(psutil.NoSuchProcess):
            await _inflict(fault, chance.choice(running), load, live, replicas)
        # Sometimes the next fault comes before the turns have recovered from this one.
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
            # SIGINT is PostgreSQL's fast shutdown: clients get an error and are disconnected.
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
            # The other replica does the work of both until this one resumes.
            await load.further()
        else:
            await asyncio.sleep(seconds)
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def _read_only(live: Live) -> AsyncIterator[None]:
    """Makes the database refuse every write, as after a fail-over to a standby."""
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
            # It is still restarting after the previous fault.
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
