"""Attacks with kernel memory outside processes, and with locks and watches on shared files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from integration.sandbox.attacks import alone, source
from integration.sandbox.jails import Worker
from strata.shared.sandbox import MIB, Isolation, RunStatus
from strata.tool_runner.sandbox.program import syscalls

FILL = """
kept = []
def fill(pairs):
    "Fills the buffers of pairs of sockets; returns the bytes that they took."
    taken = 0
    for _ in range(pairs):
        ends = socket.socketpair()
        kept.append(ends)
        for end in ends:
            end.setblocking(False)
            try:
                while True:
                    taken += end.send(b"x" * 65536)
            except BlockingIOError:
                pass
    return taken
"""


def test_socket_buffers_of_one_process_count_as_memory(jail: Worker) -> None:
    body = """
    def f():
        fill(60)
        time.sleep(5)
    """
    result = jail.run(source(FILL) + source(body), limits={"tree_bytes": 56 * MIB})
    assert result.status is RunStatus.MEMORY, result
    assert "sockets" in result.detail
    alone(jail)


def test_socket_buffers_of_a_tree_count_together(jail: Worker) -> None:
    body = """
    def f():
        for _ in range(3):
            os.fork()
        fill(50)
        time.sleep(5)
    """
    result = jail.run(source(FILL) + source(body), limits={"tree_bytes": 200 * MIB})
    if jail.level is Isolation.NAMESPACES:
        assert result.status is RunStatus.MEMORY, result
    else:
        assert result.failure
        assert result.failure.type == "BlockingIOError"
    alone(jail)


def test_buffers_of_sockets_and_pipes_cannot_be_enlarged(jail: Worker) -> None:
    body = """
    import fcntl
    def f():
        a, b = socket.socketpair()
        read, write = os.pipe()
        before = [a.getsockopt(1, n) for n in (7, 8)] + [fcntl.fcntl(write, 1032)]
        ways = {f"option {n}": attempt(lambda: a.setsockopt(1, n, 4 << 20)) for n in (7, 8, 32, 33)}
        ways["pipe"] = attempt(lambda: fcntl.fcntl(write, 1031, 1 << 20))
        after = [a.getsockopt(1, n) for n in (7, 8)] + [fcntl.fcntl(write, 1032)]
        return {"ways": {name: what[0] for name, what in ways.items()}, "same": before == after}
    """
    result = jail.value(source(body))
    assert set(result["ways"].values()) == {"stopped"}
    assert result["same"] is True


def test_sockets_cannot_be_hidden_in_messages(jail: Worker) -> None:
    body = """
    def f():
        ends = socket.socketpair()
        return attempt(lambda: socket.send_fds(ends[0], [b"x"], [ends[1].fileno()]))[0]
    """
    assert jail.value(source(body)) == "stopped"


def test_pages_cannot_be_kept_in_pipes_and_sockets(jail: Worker) -> None:
    body = """
    def f(calls):
        file = os.open("file", os.O_RDWR | os.O_CREAT)
        os.write(file, b"x" * 8192)
        a, b = socket.socketpair()
        a.send(b"x" * 4096)
        read, write = os.pipe()
        os.write(write, b"x")
        other = os.pipe()
        return {
            "splice": call(calls["splice"], b.fileno(), 0, write, 0, 100, 0),
            "tee": call(calls["tee"], read, other[1], 100, 0),
            # Two bytes keep the two pages that they lie in, also when the file is cut off.
            "sendfile to a socket": call(calls["sendfile"], a.fileno(), file, 0, 2),
            "sendfile to a pipe": call(calls["sendfile"], write, file, 0, 2),
        }
    """
    calls = {name: syscalls.number(name) for name in ("splice", "tee", "sendfile")}
    assert set(jail.value(source(body), {"calls": calls}).values()) == {-22}


def test_files_are_copied_and_sent_without_the_calls_that_keep_pages(jail: Worker) -> None:
    body = """
    import pathlib, shutil
    def f():
        one = pathlib.Path("one")
        one.write_bytes(b"x" * 100_000)
        shutil.copyfile("one", "two")
        a, b = socket.socketpair()
        with one.open("rb") as file:
            sent = a.sendfile(file, 0, 1000)
        return [len(b.recv(4096)), sent, os.path.getsize("two")]
    """
    assert jail.value(source(body)) == [1000, 1000, 100_000]


def test_shared_memory_outside_files_cannot_be_made(jail: Worker) -> None:
    """Such memory, partly unmapped or discarded, counts for no process but stays allocated."""
    body = """
    import mmap
    def f():
        def mapped(path):
            with open(path, "rb") as file:
                mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ)
        return {
            "anonymous": attempt(lambda: mmap.mmap(-1, 4096))[0],
            "zeros": attempt(lambda: mapped("/dev/zero"))[0],
            "huge": attempt(lambda: mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | 0x40000 | 0x20))[0],
        }
    """
    assert set(jail.value(source(body)).values()) == {"stopped"}


def test_private_memory_and_shared_files_of_the_scratch_folder_can_be_mapped(jail: Worker) -> None:
    body = """
    import mmap
    def f():
        private = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        private[0] = 65
        with open("file", "w+b") as file:
            file.truncate(4096)
            shared = mmap.mmap(file.fileno(), 4096)
            shared[0] = 66
        return [private[0], shared[0]]
    """
    assert jail.value(source(body)) == [65, 66]


def test_watches_on_files_and_folders_are_refused(jail: Worker) -> None:
    body = """
    import fcntl
    def f(calls):
        folder = os.open("/usr", os.O_RDONLY)
        found = {name: call(number, *words) for name, (number, words) in calls.items()}
        found["notify"] = call(FCNTL, folder, 1026, 0x3F)
        return found
    """.replace("FCNTL", str(syscalls.number("fcntl")))
    # inotify_init1, inotify_init (x86_64 alone), fanotify_init.
    numbers = {
        "x86_64": {"inotify_init1": 294, "inotify_init": 253, "fanotify_init": 300},
        "aarch64": {"inotify_init1": 26, "fanotify_init": 262},
    }[syscalls.machine()]
    calls = {name: (number, [0, 0]) for name, number in numbers.items()}
    result = jail.value(source(body), {"calls": calls})
    assert result == dict.fromkeys(result, -1)


def test_files_of_the_host_cannot_be_locked(jail: Worker) -> None:
    path = os.path.realpath("/usr/bin/env")
    body = """
    import fcntl
    def f(path):
        held = os.open(path, os.O_RDONLY)
        # struct flock: F_RDLCK, SEEK_SET, from 0 to the end.
        read_lock = struct.pack("hhqqi4x", 0, 0, 0, 0, 0)
        found = [
            attempt(lambda: fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)),
            attempt(lambda: fcntl.fcntl(held, 37, read_lock)),
            attempt(lambda: fcntl.lockf(held, fcntl.LOCK_SH | fcntl.LOCK_NB)),
            attempt(lambda: fcntl.fcntl(held, 1024, 0)),
        ]
        print("held", flush=True)
        time.sleep(1.5)
        return [what[0] for what in found]
    """
    probe = subprocess.Popen(
        [sys.executable, "-c", _PROBE, path], stdout=subprocess.PIPE, text=True
    )
    try:
        result = jail.value(source(body), {"path": path})
    finally:
        output, _ = probe.communicate()
    # Locks by fcntl report success but do not lock: see docs/decisions/0093.
    assert result == ["stopped", "stopped", "got", "stopped"]
    assert output.strip() == "free"


# Tries repeatedly, while the call runs, to take the locks that the call would hold.
_PROBE = """
import fcntl, os, sys, time
seen = "free"
held = os.open(sys.argv[1], os.O_RDONLY)
until = time.monotonic() + 2
while time.monotonic() < until:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(held, fcntl.LOCK_UN)
    except BlockingIOError:
        seen = "locked"
    with open("/proc/locks") as locks:
        if f":{os.fstat(held).st_ino} " in locks.read().replace("\\n", " "):
            seen = "locked"
    time.sleep(0.01)
print(seen)
"""


def test_databases_in_the_scratch_folder_work(jail: Worker) -> None:
    body = """
    import sqlite3
    def f():
        first = sqlite3.connect("data.db")
        first.execute("create table t (n integer)")
        with first:
            first.executemany("insert into t values (?)", [(n,) for n in range(100)])
        second = sqlite3.connect("data.db")
        second.execute("pragma journal_mode = wal")
        with second:
            second.execute("insert into t values (1000)")
        return first.execute("select count(*), max(n) from t").fetchone()
    """
    assert jail.value(source(body)) == [101, 1000]


@pytest.mark.parametrize("loops", [3])
def test_event_loops_work_within_the_usual_limits(jail: Worker, loops: int) -> None:
    body = """
    import asyncio
    def f(loops):
        async def work():
            reader, writer = os.pipe()
            os.write(writer, b"x")
            process = await asyncio.create_subprocess_exec("/usr/bin/true") if FORKS else None
            return os.read(reader, 1).decode() + str(await process.wait() if process else 0)
        return [asyncio.new_event_loop().run_until_complete(work()) for _ in range(loops)]
    """.replace("FORKS", str(jail.level is Isolation.NAMESPACES))
    assert jail.value(source(body), {"loops": loops}) == ["x0"] * loops
