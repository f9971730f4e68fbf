"""Supervised child processes: start, restart and end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from strata.protocol.errors import FailedPreconditionError, UnavailableError
from strata.standalone.locks import FolderLock
from strata.standalone.supervisor import (
    Command,
    ProcessSupervisor,
    end,
    spawn,
    tail,
    until_ready,
    wait_exit,
)
from unwritable_logs import unwritable_logs

pytestmark = pytest.mark.child_process


def _command(folder: Path, program: str) -> Command:
    return Command(
        program=[sys.executable, "-I", "-S", "-c", program],
        folder=folder,
        log_path=folder / "child.log",
    )


SLEEP = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)\n" + SLEEP


def _supervisor(folder: Path, program: str, patience: float = 10.0) -> ProcessSupervisor:
    async def launch() -> subprocess.Popen[bytes]:
        process = spawn(_command(folder, program))
        started = await until_ready(
            process,
            lambda: (
                "python" in psutil.Process(process.pid).name()
                and "launcher.py" not in " ".join(psutil.Process(process.pid).cmdline())
            ),
            stop=signal.SIGTERM,
        )
        if not started:
            raise UnavailableError("ended at once")
        return process

    return ProcessSupervisor(
        "child",
        launch,
        stop_signal=signal.SIGTERM,
        stop_timeout=patience,
        log_path=folder / "child.log",
    )


async def test_a_dead_child_is_replaced(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path, SLEEP)
    await supervisor.start()
    try:
        for round_number in range(1, 4):
            before = supervisor.pid
            assert before is not None
            os.kill(before, signal.SIGKILL)
            while supervisor.pid == before:
                await asyncio.sleep(0.01)
            await supervisor.wait_serving()
            assert supervisor.restarts == round_number
            assert supervisor.pid not in (None, before)
    finally:
        await supervisor.stop()
    assert supervisor.pid is None


async def test_waiting_for_a_crashing_child_raises_and_restarts_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.standalone.supervisor._BACK_OFF_SECONDS", (0.0, 0.0))
    monkeypatch.setattr("strata.standalone.supervisor._LONG_PAUSE_SECONDS", 0.05)
    supervisor = _supervisor(tmp_path, SLEEP)
    await supervisor.start()
    assert supervisor.pid is not None
    process = psutil.Process(supervisor.pid)
    launch, tries = supervisor._launch, 0

    async def fail() -> subprocess.Popen[bytes]:
        nonlocal tries
        tries += 1
        # If such an error ended the supervisor, it would never start the child again.
        raise ValueError("unheard of") if tries % 2 else UnavailableError("the disk is full")

    supervisor._launch = fail
    process.kill()
    while supervisor.pid is not None:
        await asyncio.sleep(0.01)

    with pytest.raises(UnavailableError, match=r"does not stay up: .*child\.log"):
        await supervisor.wait_serving()
    while tries < 10:
        with pytest.raises(UnavailableError, match="does not stay up"):
            await supervisor.wait_serving()
        await asyncio.sleep(0.01)
    supervisor._launch = launch
    while supervisor.pid is None:
        await asyncio.sleep(0.01)
    await supervisor.wait_serving()
    assert supervisor.restarts == 1
    await supervisor.stop()


async def test_a_dead_child_is_replaced_although_the_log_cannot_be_written(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path, SLEEP)
    await supervisor.start()
    before = supervisor.pid
    assert before is not None
    with unwritable_logs():
        os.kill(before, signal.SIGKILL)
        async with asyncio.timeout(30):
            while supervisor.pid in (None, before):
                await asyncio.sleep(0.01)
        await supervisor.stop()


async def test_stopping_while_a_child_is_being_replaced_leaves_no_child(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path, SLEEP)
    before = {child.pid for child in psutil.Process().children()}
    await supervisor.start()
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    await asyncio.sleep(0.02)
    await supervisor.stop()

    assert {child.pid for child in psutil.Process().children()} <= before


async def test_a_child_that_ignores_signals_is_killed(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path, STUBBORN, patience=0.2)
    await supervisor.start()
    assert supervisor.pid is not None
    child = psutil.Process(supervisor.pid)
    while "1" not in tail(tmp_path / "child.log"):
        await asyncio.sleep(0.01)
    await supervisor.stop()
    assert not child.is_running()


async def test_starting_twice_is_refused(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path, SLEEP)
    await supervisor.start()
    try:
        with pytest.raises(FailedPreconditionError):
            await supervisor.start()
    finally:
        await supervisor.stop()


@pytest.mark.parametrize("watchdog", [False, True])
async def test_a_child_inherits_neither_environment_nor_descriptors(
    tmp_path: Path, watchdog: bool
) -> None:
    program = (
        "import os; print(sorted(os.environ), os.getsid(0) == os.getpgid(0),"
        "oct(os.umask(0)), sorted(os.listdir('/proc/self/fd'))[:3], flush=True)"
    )
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    process = spawn(_command(tmp_path, program), watchdog=watchdog)
    assert await wait_exit(process) == 0
    await end(process, signal.SIGTERM, 1.0)
    os.close(secret)

    output = tail(tmp_path / "child.log")
    assert "API" not in output
    assert "HOME" not in output
    assert "True 0o77" in output
    assert (tmp_path / "child.log").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("watchdog", [False, True])
async def test_the_exit_code_of_a_child_is_returned(tmp_path: Path, watchdog: bool) -> None:
    process = spawn(_command(tmp_path, "raise SystemExit(7)"), watchdog=watchdog)
    assert await wait_exit(process) == 7
    await end(process, signal.SIGTERM, 1.0)


async def test_a_child_that_ends_is_not_ready(tmp_path: Path) -> None:
    process = spawn(_command(tmp_path, "raise SystemExit(1)"))
    assert not await until_ready(process, lambda: False, stop=signal.SIGTERM)


async def test_a_cancelled_wait_ends_the_child(tmp_path: Path) -> None:
    process = spawn(_command(tmp_path, SLEEP))
    waiting = asyncio.create_task(until_ready(process, lambda: False, stop=signal.SIGTERM))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert process.poll() is not None


def test_a_lock_records_the_pid_of_its_holder(tmp_path: Path) -> None:
    first, second = (FolderLock(tmp_path / "lock", "the folder") for _ in range(2))
    assert second.holder() is None
    first.acquire("somewhere")
    assert second.holder() == os.getpid()
    with pytest.raises(FailedPreconditionError, match=rf"process {os.getpid()} \(somewhere\)"):
        second.acquire()
    first.release()
    first.release()
    assert second.holder() is None
    second.acquire()
    second.release()


def test_a_log_is_rotated_and_its_end_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    assert tail(log) == ""
    log.write_bytes(b"x" * (9 << 20) + b"the end")
    assert tail(log, 7) == "the end"
    spawn(_command(tmp_path, "print('new')")).wait()
    assert log.read_text() == "new\n"
    assert (tmp_path / "child.log.1").stat().st_size > 9 << 20
