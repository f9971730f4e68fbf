# ruff: noqa: E501 - sources of tools
"""Attacks on the resource limits of a call."""

from __future__ import annotations

import os

import pytest

from integration.sandbox.attacks import alone, no_process_has, source
from integration.sandbox.jails import Worker
from strata.shared.sandbox import MIB, Isolation, RunStatus
from strata.tool_runner.sandbox.program import syscalls


def test_a_fork_bomb_is_ended_and_reported(jail: Worker) -> None:
    body = """
    def f():
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.001)
    """
    wall = 60.0 if jail.level is Isolation.NAMESPACES else 1.0
    result = jail.run(source(body), limits={"processes": 20, "wall_seconds": wall})
    if jail.level is Isolation.NAMESPACES:
        assert result.status is RunStatus.PROCESSES
        assert "20" in result.detail
    else:
        # Every fork fails, and the call tries until its time limit.
        assert result.status is RunStatus.TIMEOUT
    alone(jail)


def test_a_thread_bomb_is_ended_and_reported(jail: Worker) -> None:
    body = """
    def f():
        # At least PTHREAD_STACK_MIN, which is 131072 on aarch64.
        threading.stack_size(1 << 18)
        while True:
            try:
                threading.Thread(target=time.sleep, args=(90,)).start()
            except RuntimeError:
                time.sleep(0.01)
    """
    result = jail.run(source(body), limits={"processes": 20, "wall_seconds": 60.0})
    assert result.status is RunStatus.PROCESSES
    alone(jail)


def test_a_memory_bomb_is_ended_and_reported(jail: Worker) -> None:
    result = jail.run(
        "def f():\n    return len(bytearray(10**10))", limits={"memory_bytes": 256 * MIB}
    )
    assert result.status is RunStatus.MEMORY
    assert "256 MiB" in result.detail


def test_a_memory_bomb_of_many_processes_is_ended(jail: Worker) -> None:
    body = """
    def f():
        for _ in range(8):
            if not os.fork():
                break
        kept = []
        while True:
            kept.append(b"x" * 4_000_000)
            time.sleep(0.005)
    """
    result = jail.run(source(body), limits={"tree_bytes": 200 * MIB, "memory_bytes": 150 * MIB})
    if jail.level is Isolation.NAMESPACES:
        assert result.status is RunStatus.MEMORY
        assert "together" in result.detail
        # More than one process may use. Buffers of sockets and pipes count towards the limit, and
        # not towards the peak.
        assert result.peak_bytes > 150 * MIB
    else:
        assert result.failure
        assert result.failure.type == "BlockingIOError"


def test_memory_of_a_process_whose_first_thread_has_ended_counts(jail: Worker) -> None:
    body = """
    def f(leave):
        def fill():
            time.sleep(0.1)
            kept = bytearray(b"x" * (300 << 20))
            time.sleep(20)
        threading.Thread(target=fill).start()
        LIBC.syscall(leave, 0)
    """
    limits = {"tree_bytes": 150 * MIB, "memory_bytes": 800 * MIB}
    leave = syscalls.number("exit")
    result = jail.run(source(body), "f", {"leave": leave}, limits=limits)
    assert result.status is RunStatus.MEMORY, result


def test_memory_without_a_process_cannot_be_made(jail: Worker) -> None:
    body = """
    from multiprocessing import shared_memory
    def f():
        return {"memfd": attempt(lambda: os.memfd_create("x")),
                "shm": attempt(lambda: shared_memory.SharedMemory(create=True, size=1 << 20)),
                "queue": attempt(lambda: 1 / 0 if LIBC.mq_open(b"/x", os.O_CREAT, 0o600, None) < 0 else 0)}
    """
    result = jail.value(source(body))
    assert {what[0] for what in result.values()} == {"stopped"}, result


def test_the_scratch_folder_can_be_filled_to_its_limit_only(jail: Worker) -> None:
    body = """
    def f():
        written = 0
        for n in range(100):
            with open(f"file{n}", "wb", buffering=0) as file:
                for _ in range(4):
                    written += file.write(b"x" * (1 << 20))
            time.sleep(0.02)
        return written
    """
    result = jail.run(source(body), limits={"disk_bytes": 16 * MIB})
    if jail.level is Isolation.NAMESPACES:
        assert result.failure
        assert "No space left" in result.failure.message
    else:
        assert result.status is RunStatus.KILLED
        assert "scratch folder" in result.detail


def test_deleted_files_count_too(jail: Worker) -> None:
    body = """
    def f():
        kept = []
        for n in range(60):
            file = open("file", "wb", buffering=0)
            os.unlink("file")
            file.write(b"x" * (1 << 20))
            kept.append(file)
            time.sleep(0.02)
        return len(kept)
    """
    result = jail.run(source(body), limits={"disk_bytes": 16 * MIB})
    assert result.status in {RunStatus.TOOL_ERROR, RunStatus.KILLED}, result


def test_one_large_file_is_refused(jail: Worker) -> None:
    body = """
    def f():
        os.truncate("x", 1 << 40) if os.path.exists("x") else None
        with open("x", "wb") as file:
            file.truncate(1 << 40)
    """
    result = jail.run(source(body), limits={"disk_bytes": 16 * MIB})
    assert result.status is RunStatus.TOOL_ERROR, result


def test_entries_of_the_scratch_folder_are_limited(jail: Worker) -> None:
    body = """
    def f():
        for n in range(3000):
            os.mkdir(f"{n}")
            time.sleep(0.0005)
    """
    result = jail.run(source(body), limits={"files": 200})
    assert result.status in {RunStatus.TOOL_ERROR, RunStatus.KILLED}, result


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_output_is_ended_and_cut(jail: Worker, stream: str) -> None:
    body = """
    def f(stream):
        out = getattr(sys, stream)
        while True:
            out.write("x" * 65536)
    """
    result = jail.run(source(body), "f", {"stream": stream}, limits={"output_bytes": 100_000})
    assert result.status is RunStatus.OUTPUT
    assert "100,000" in result.detail
    assert len(getattr(result, stream)) == 100_000


def test_a_flood_of_two_processes_is_ended(jail: Worker) -> None:
    body = """
    def f():
        if os.environ.get("FORK"):
            os.fork()
        while True:
            os.write(2, b"x" * 65536)
    """
    fork = {"FORK": "1"} if jail.level is Isolation.NAMESPACES else {}
    result = jail.run(source(body), limits={"output_bytes": 100_000}, environment=fork)
    assert result.status is RunStatus.OUTPUT
    assert len(result.stderr) == 100_000


def test_output_over_the_limit_is_truncated_and_the_call_continues(jail: Worker) -> None:
    result = jail.run(
        'def f():\n    print("é" * 100_000)\n    return 1', limits={"output_bytes": 50_001}
    )
    assert (result.status, result.value_json) == (RunStatus.OK, "1")
    # A character in the middle of which the output is truncated is removed.
    assert result.stdout == "é" * 25_000
    assert "Standard output was cut" in result.detail


def test_output_before_an_end_is_kept(jail: Worker) -> None:
    result = jail.run(
        source('def f():\n    print("first")\n    time.sleep(60)'), limits={"wall_seconds": 3.0}
    )
    assert (result.status, result.stdout) == (RunStatus.TIMEOUT, "first\n")


def test_endless_sleeping_is_ended(jail: Worker) -> None:
    result = jail.run(source("def f():\n    time.sleep(1000)"), limits={"wall_seconds": 0.4})
    assert result.status is RunStatus.TIMEOUT
    assert "0.4 seconds" in result.detail


def test_a_busy_loop_that_ignores_signals_is_ended(jail: Worker) -> None:
    body = """
    def f():
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True:
            pass
    """
    result = jail.run(source(body), limits={"wall_seconds": 0.5})
    assert result.status is RunStatus.TIMEOUT


def test_processor_time_is_limited_and_reported(jail: Worker) -> None:
    result = jail.run("def f():\n    while True:\n        pass", limits={"cpu_seconds": 1})
    assert result.status is RunStatus.CPU, result
    assert "1 seconds of CPU time" in result.detail


def test_a_loop_in_c_that_holds_the_lock_is_ended(jail: Worker) -> None:
    result = jail.run("def f():\n    return sum(iter(int, 1))", limits={"wall_seconds": 0.5})
    assert result.status is RunStatus.TIMEOUT


def test_a_daemon_does_not_outlive_the_call(jail: Worker) -> None:
    body = """
    def f(mark):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.execv("/usr/bin/sleep", [mark, "1000"])
            os._exit(0)
        time.sleep(0.05)
        return 1
    """
    mark = f"strata-daemon-{os.getpid()}-{jail.pid}"
    result = jail.run(source(body), "f", {"mark": mark})
    if jail.level is Isolation.NAMESPACES:
        assert result.status is RunStatus.OK, result
    no_process_has(mark)


def test_running_threads_do_not_delay_the_end_of_a_call(jail: Worker) -> None:
    body = """
    def f():
        for _ in range(5):
            threading.Thread(target=time.sleep, args=(100,)).start()
        return 1
    """
    assert jail.value(source(body)) == 1
