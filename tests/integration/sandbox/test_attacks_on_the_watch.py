# ruff: noqa: E501 - sources of tools
"""Attacks that hide the resource use of a call, outlive the call, or watch other processes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from integration.sandbox.attacks import alone, source
from integration.sandbox.jails import Worker
from strata.shared.sandbox import MIB, Isolation, RunStatus
from strata.tool_runner.sandbox.program import syscalls

# Each attack keeps many times the disk space of the call in files without a name; `hide` gets an
# open file of 4 MiB.
HOARD = """
import mmap
def f():
    ends = socket.socketpair()
    for n in range(40):
        with open("file", "w+b", buffering=0) as file:
            os.unlink("file")
            for _ in range(4):
                file.write(b"x" * (1 << 20))
            hide(file, ends, n)
        time.sleep(0.02)
    time.sleep(0.2)
kept = []
def fill():
    try:
        for n in range(40):
            with open(f"file{n}", "w+b", buffering=0) as file:
                os.unlink(f"file{n}")
                for _ in range(4):
                    file.write(b"x" * (1 << 20))
                kept.append(os.dup(file.fileno()))
            time.sleep(0.02)
        os.write(1, b"all kept")
        time.sleep(0.2)
    finally:
        os._exit(7)
"""
HIDING = {
    "mapped in part and closed": """
    def hide(file, ends, n):
        kept.append((LIBC.mmap(None, ctypes.c_size_t(4096), 1, 1, file.fileno(), ctypes.c_long(0))))
        if kept[-1] == -1:
            raise OSError
    """,
    "sent and never received": """
    def hide(file, ends, n):
        socket.send_fds(ends[0], [b"x"], [file.fileno()])
    """,
    "held by a process that cannot be looked at": """
    def hide(file, ends, n):
        if LIBC.prctl(4, 0, 0, 0, 0):
            raise OSError
        kept.append(os.dup(file.fileno()))
    """,
    "held in a table of a thread's own": """
    def hide(file, ends, n):
        def go_on():
            own = call(436, 100, 200, 2)
            fill() if own == 0 else ends[1].send(b"refused")
            os.close(ends[1].fileno())
        if n == 0:
            ends[0].setblocking(True)
            threading.Thread(target=go_on).start()
            time.sleep(0)
            said = ends[0].recv(100)
            raise OSError(said)
    """,
    "held when the first thread has ended": """
    def hide(file, ends, n):
        if n == 0:
            threading.Thread(target=fill).start()
            LIBC.syscall(EXIT, 0)
    """,
}


@pytest.mark.parametrize("way", list(HIDING))
def test_disk_space_of_a_call_cannot_be_hidden(jail: Worker, way: str) -> None:
    body = source(HOARD) + source(HIDING[way]).replace("EXIT", str(syscalls.number("exit")))
    result = jail.run(body, limits={"disk_bytes": 16 * MIB, "wall_seconds": 6.0})
    # The attack is stopped by the kernel (no space, or the system call is refused) or the watchdog.
    assert result.status in {RunStatus.TOOL_ERROR, RunStatus.KILLED, RunStatus.TIMEOUT}, result
    assert "all kept" not in result.stdout
    alone(jail)


def test_a_deleted_file_that_is_mapped_may_still_be_used(jail: Worker) -> None:
    body = """
    import mmap
    def f():
        with open("file", "w+b") as file:
            file.truncate(1 << 20)
            os.unlink("file")
            memory = mmap.mmap(file.fileno(), 1 << 20)
        memory[0] = 65
        time.sleep(0.3)
        return memory[0]
    """
    assert jail.value(source(body)) == 65


def test_disk_space_cannot_be_taken_faster_than_it_is_measured(jail: Worker) -> None:
    body = """
    def f():
        for n in range(60):
            with open(f"file{n}", "wb") as file:
                os.posix_fallocate if False else LIBC.syscall(FALLOCATE, file.fileno(), 0, ctypes.c_long(0), ctypes.c_long(16 << 20))
        return sum(os.stat(f"file{n}").st_blocks * 512 for n in range(60) if os.path.exists(f"file{n}"))
    """
    text = source(body).replace("FALLOCATE", str(syscalls.number("fallocate")))
    result = jail.run(text, limits={"disk_bytes": 16 * MIB})
    taken = int(result.value_json) if result.status is RunStatus.OK else 0
    assert taken <= 16 * MIB, result


def test_shared_files_cannot_be_watched(jail: Worker) -> None:
    body = """
    import fcntl
    def f():
        watch = LIBC.inotify_init1(0)
        places = [b"/usr/bin", b"/usr/lib", b"/bin/sh", b"/dev/null", b"/", os.path.dirname(os.__file__).encode()]
        found = {p.decode(): 1 if LIBC.inotify_add_watch(watch, p, 0xfff) >= 0 else 0 for p in places}
        found["lease"] = 0 if attempt(lambda: fcntl.fcntl(os.open("/bin/sh", 0), fcntl.F_SETLEASE, 0))[0] == "stopped" else 1
        return found
    """
    assert set(jail.value(source(body)).values()) == {0}


def test_names_of_processes_do_not_forge_their_status(jail: Worker) -> None:
    body = """
    def f():
        for name in (b"x\\nThreads:\\t0", b"\\nPPid:\\t99999", b"x) R 1 1 1 1 ("):
            LIBC.prctl(15, name, 0, 0, 0)
            time.sleep(0.08)
        kept = bytearray(b"x" * (300 << 20))
        time.sleep(8)
    """
    result = jail.run(source(body), limits={"tree_bytes": 150 * MIB, "memory_bytes": 800 * MIB})
    assert result.status is RunStatus.MEMORY, result


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("restricted", [False, True], ids=["namespaces", "landlock"])
def test_a_call_does_not_outlive_a_service_that_is_killed(restricted: bool) -> None:
    """A call must end with its service, because no other process could end it afterwards."""
    worker = Worker(other_user=False, restricted=restricted)
    if worker.level is not (Isolation.LANDLOCK if restricted else Isolation.NAMESPACES):
        worker.close()
        pytest.skip(f"this machine does not give it: {worker.words}")
    body = """
    def f():
        for number in range(1, 65):
            attempt(lambda: signal.signal(number, signal.SIG_IGN))
        LIBC.prctl(1, 0, 0, 0, 0)
        attempt(os.setsid)
        attempt(lambda: os.close(3))
        attempt(lambda: os.fork())
        while True:
            time.sleep(0.05)
    """
    process: Any = worker._process
    process.stdin.write(
        json.dumps({"source": source(body), "function": "f", "limits": {"wall_seconds": 60}}) + "\n"
    )
    process.stdin.flush()
    deadline = time.monotonic() + 20
    ignoring: list[psutil.Process] = []
    while not ignoring and time.monotonic() < deadline:
        ignoring = [p for p in _descendants(process.pid) if _ignores(p.pid)]
        time.sleep(0.02)
    assert ignoring, "the call did not begin"
    family = _descendants(process.pid)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    _, left = psutil.wait_procs(family, timeout=60)
    for pid in left:
        pid.kill()
    assert left == []


def _ignores(pid: int) -> bool:
    """Returns whether a process ignores SIGTERM and SIGUSR1, as the attack does."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    ignored = int(
        next(line for line in text.splitlines() if line.startswith("SigIgn")).split()[1], 16
    )
    wanted = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGUSR1 - 1)
    return ignored & wanted == wanted
