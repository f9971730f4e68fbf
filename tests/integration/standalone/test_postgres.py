"""A PostgreSQL of our own: start, secrets, restart, leftovers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import psutil
import pytest
import pytest_asyncio

from sql_queries import fetch_value
from strata.protocol.errors import FailedPreconditionError, Reason, UnavailableError
from strata.standalone.postgres import EmbeddedPostgres


@pytest.fixture(scope="module")
def cluster(open_folder_of_module: Path) -> Path:
    """The folder after a first start, made once because a first start takes long."""
    folder = open_folder_of_module / "cluster"

    async def start_and_stop() -> None:
        server = EmbeddedPostgres(folder)
        await server.start()
        await server.stop()

    asyncio.run(start_and_stop())
    return folder


def copied(cluster: Path, folder: Path) -> EmbeddedPostgres:
    """Returns a server on a copy of a cluster, with its owners and permissions."""
    subprocess.run(["cp", "-a", str(cluster), str(folder)], check=True)
    (folder / "port").unlink()
    return EmbeddedPostgres(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(cluster: Path, open_folder_of_module: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A running server that tests share and do not change."""
    server = copied(cluster, open_folder_of_module / "running")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def server(cluster: Path, open_folder: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A running server for one test."""
    server = copied(cluster, open_folder / "postgres")
    await server.start()
    yield server
    await server.stop()


async def test_the_database_runs_with_durable_commits(running: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(running.url())
    try:
        rows = await connection.fetch("SELECT name, setting FROM pg_settings")
    finally:
        await connection.close()
    settings = {row["name"]: row["setting"] for row in rows}

    assert [settings[name] for name in ("fsync", "synchronous_commit", "full_page_writes")] == [
        "on"
    ] * 3
    assert settings["listen_addresses"] == "127.0.0.1"
    assert settings["unix_socket_directories"] == ""
    assert settings["jit"] == "off"
    assert settings["TimeZone"] == "UTC"


async def test_order_and_case_do_not_depend_on_the_machine(running: EmbeddedPostgres) -> None:
    ordered = "SELECT string_agg(x, '' ORDER BY x) FROM unnest(ARRAY['a','B','é','Z']) x"
    assert await fetch_value(running.url(), ordered) == "BZaé"
    assert await fetch_value(running.url(), "SELECT lower('ÉÀ')") == "éà"


@pytest.mark.parametrize("extension", ["pg_trgm", "btree_gin", "unaccent", "vector"])
async def test_the_extensions_are_installed(running: EmbeddedPostgres, extension: str) -> None:
    assert await fetch_value(
        running.url(), f"SELECT count(*) FROM pg_available_extensions WHERE name = '{extension}'"
    )


async def test_connections_without_the_password_are_refused(running: EmbeddedPostgres) -> None:
    for password in ("", "guess"):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await fetch_value(running.url(password=password), "SELECT 1")


async def test_other_users_cannot_read_password_and_data(running: EmbeddedPostgres) -> None:
    def mode(name: str) -> int:
        return stat.S_IMODE((running.folder / name).stat().st_mode)

    assert mode("superuser.password") == 0o600
    assert mode("postgres.log") == 0o600
    assert mode("data") == 0o700
    assert mode(".") in (0o700, 0o711)
    password = (running.folder / "superuser.password").read_text().strip()
    assert password not in " ".join(psutil.Process(running.pid).cmdline())


async def test_the_server_never_runs_as_root(running: EmbeddedPostgres) -> None:
    assert psutil.Process(running.pid).uids().real != 0


async def test_the_server_inherits_no_environment_variables_of_ours(
    running: EmbeddedPostgres,
) -> None:
    assert set(psutil.Process(running.pid).environ()) <= {"LC_ALL", "PATH", "PGDATA"} | {
        name for name in psutil.Process(running.pid).environ() if name.startswith("LC_")
    }


async def test_a_restart_keeps_data_port_and_password(server: EmbeddedPostgres) -> None:
    await fetch_value(server.url(), "CREATE TABLE kept AS SELECT 7 AS number")
    before = server.url()
    await server.stop()

    again = EmbeddedPostgres(server.folder)
    await again.start()
    try:
        assert again.url() == before
        assert await fetch_value(again.url(), "SELECT number FROM kept") == 7
        await again.restart()
        assert await fetch_value(again.url(), "SELECT number FROM kept") == 7
    finally:
        await again.stop()


async def test_a_killed_server_is_restarted_automatically(server: EmbeddedPostgres) -> None:
    await fetch_value(server.url(), "CREATE TABLE kept AS SELECT 7 AS number")
    first = server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await _noticed(server, first)
    await server.wait_serving()

    assert server.restarts == 1
    assert server.pid != first
    assert await fetch_value(server.url(), "SELECT number FROM kept") == 7


async def _noticed(server: EmbeddedPostgres, died: int) -> None:
    """Waits until the supervisor has detected the death of the server."""
    while server.pid == died:
        await asyncio.sleep(0.01)


async def test_a_server_that_cannot_restart_is_reported_with_its_reason(
    server: EmbeddedPostgres,
) -> None:
    (server.folder / "data" / "PG_VERSION").write_text("3\n")
    first = server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await _noticed(server, first)

    with pytest.raises(UnavailableError, match=r"does not stay up(.|\n)*incompatible"):
        await server.wait_serving()


async def test_the_error_for_a_second_supervisor_names_the_holder(
    running: EmbeddedPostgres,
) -> None:
    with pytest.raises(FailedPreconditionError, match=f"process {os.getpid()}") as refused:
        await EmbeddedPostgres(running.folder).start()

    assert refused.value.reason is Reason.IN_USE
    assert await fetch_value(running.url(), "SELECT 1") == 1


async def test_a_leftover_pid_file_of_another_process_is_ignored(
    server: EmbeddedPostgres,
) -> None:
    await server.stop()
    # The state after a container was killed: its pid now belongs to another process, this one.
    pid_file = server.folder / "data" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{server.folder / 'data'}\n0\n{server.port}\n\n\n\nready\n")

    await server.start()
    assert await fetch_value(server.url(), "SELECT 1") == 1


async def test_an_interrupted_first_start_is_repeated(open_folder: Path) -> None:
    folder = open_folder / "postgres"
    (folder / "data.new" / "base").mkdir(parents=True)
    (folder / "data").mkdir()
    server = EmbeddedPostgres(folder)

    await server.start()
    try:
        assert await fetch_value(server.url(), "SELECT 1") == 1
    finally:
        await server.stop()


async def test_data_of_another_major_version_is_refused_untouched(
    server: EmbeddedPostgres,
) -> None:
    await server.stop()
    version = server.folder / "data" / "PG_VERSION"
    version.write_text("14\n")

    with pytest.raises(
        FailedPreconditionError, match=r"PostgreSQL 14.*strata backup.*strata restore"
    ):
        await EmbeddedPostgres(server.folder).start()
    version.write_text("18\n")
    await server.start()


async def test_incomplete_data_is_refused_untouched(server: EmbeddedPostgres) -> None:
    await server.stop()
    version = server.folder / "data" / "PG_VERSION"
    text = version.read_text()
    version.unlink()

    with pytest.raises(FailedPreconditionError, match=r"no file PG_VERSION.*strata restore"):
        await EmbeddedPostgres(server.folder).start()
    version.write_text(text)
    await server.start()


async def test_a_used_port_is_replaced_by_a_free_one(server: EmbeddedPostgres) -> None:
    port = server.port
    await server.stop()
    with socket.create_server(("127.0.0.1", port)):
        await server.start()
        assert server.port != port
        assert await fetch_value(server.url(), "SELECT 1") == 1


async def test_a_long_path_works(open_folder: Path) -> None:
    server = EmbeddedPostgres(open_folder / ("deep" * 30) / "postgres")
    (open_folder / ("deep" * 30)).mkdir(mode=0o755)
    await server.start()
    try:
        assert await fetch_value(server.url(), "SELECT 1") == 1
    finally:
        await server.stop()


async def test_only_the_superusers_password_is_known(running: EmbeddedPostgres) -> None:
    with pytest.raises(ValueError, match="strata_recall"):
        running.url(user="strata_recall")
    assert running.url(user="a b", password="p/w", database="d?") == (
        f"postgresql://a%20b:p%2Fw@127.0.0.1:{running.port}/d%3F"
    )
