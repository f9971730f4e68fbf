"""User ids of the programs of MCP servers: one server's own as long as it runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from strata.tool_execution.mcp.errors import ConnectError
from strata.tool_execution.mcp.program_user import ProgramUser, ProgramUsers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# Not the users of the product, which a server on this machine may use at the same time.
FIRST = 1_900_000_000


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """Servers that run until the end of the test."""
    with ExitStack() as stack:
        yield stack


def start(users: ProgramUsers, project: str, server: str, running: ExitStack) -> ProgramUser:
    return running.enter_context(users.assigned(project, server))


def start_and_stop(users: ProgramUsers, project: str, server: str) -> ProgramUser:
    with users.assigned(project, server) as user:
        # The order of starts follows from these times, whose resolution may be lower than the speed
        # of the test.
        number = int(server)
        os.utime(user.home, (number, number))
        return user


def test_no_two_running_servers_have_the_same_user_id(
    open_folder: Path, running: ExitStack
) -> None:
    users = ProgramUsers(FIRST, 40, open_folder)
    names = [(f"project-{n % 4}", f"server-{n // 4}") for n in range(40)]
    assigned = [start(users, *name, running) for name in names]
    assert {user.uid for user in assigned} == set(range(FIRST, FIRST + 40))
    assert len({user.home for user in assigned}) == 40
    for user in assigned:
        status = user.home.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (user.uid, user.uid, 0o700)


def test_a_server_keeps_its_user_and_its_home(open_folder: Path) -> None:
    first = start_and_stop(ProgramUsers(FIRST, 1_000, open_folder), "project", "1")
    (first.home / "cache").write_text("x")
    for number in range(2, 30):
        start_and_stop(ProgramUsers(FIRST, 1_000, open_folder), "project", str(number))
    assert start_and_stop(ProgramUsers(FIRST, 1_000, open_folder), "project", "1") == first
    assert (first.home / "cache").read_text() == "x"


def test_the_server_that_was_started_longest_ago_loses_its_user_with_its_home(
    open_folder: Path,
) -> None:
    users = ProgramUsers(FIRST, 2, open_folder)
    second, first = (start_and_stop(users, "project", number) for number in ("2", "1"))
    third = start_and_stop(users, "other", "3")
    assert third.uid == first.uid
    assert not first.home.exists()
    assert second.home.exists()


def test_a_server_that_runs_does_not_lose_its_user(open_folder: Path, running: ExitStack) -> None:
    users = ProgramUsers(FIRST, 2, open_folder)
    first = start(users, "project", "1", running)
    second = start(users, "project", "2", running)
    with (
        pytest.raises(ConnectError, match="all user ids for programs"),
        users.assigned("other", "3"),
    ):
        pass
    assert first.home.exists()
    assert second.home.exists()


def test_a_user_id_with_a_running_process_is_given_to_no_other_server(open_folder: Path) -> None:
    users = ProgramUsers(FIRST, 1, open_folder)
    first = start_and_stop(users, "project", "1")
    # A process that a program leaves running, in another session.
    with subprocess.Popen(["sleep", "600"], user=first.uid, start_new_session=True) as survivor:
        try:
            with pytest.raises(ConnectError), users.assigned("other", "2"):
                pass
            assert first.home.exists()
        finally:
            survivor.kill()
    assert start_and_stop(users, "other", "2").uid == first.uid


def test_a_home_that_cannot_be_removed_does_not_block_a_new_program(open_folder: Path) -> None:
    users = ProgramUsers(FIRST, 2, open_folder)
    first = start_and_stop(users, "project", "1")
    second = start_and_stop(users, "project", "2")
    folder = os.open(first.home, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=folder)
        deeper = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = deeper
    os.close(folder)
    os.utime(first.home, (1, 1))
    try:
        assert start_and_stop(users, "other", "3").uid in {first.uid, second.uid}
    finally:
        subprocess.run(["rm", "-rf", str(first.home)], check=True)
