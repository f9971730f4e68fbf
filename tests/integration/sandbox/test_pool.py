# ruff: noqa: E501 - sources of tools
"""The pool: many calls, concurrent and cancelled calls, a dead fork server, leftovers."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from callers import as_project
from integration.sandbox.families import children, descendants
from integration.sandbox.jails import Worker, interpreter, started
from polling import eventually
from strata.protocol.errors import UnavailableError
from strata.shared.context import use
from strata.shared.sandbox import MIB, Isolation, Limits, RunStatus, SandboxRun
from strata.tool_runner.sandbox.call import JailedCall
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox
from strata.tool_runner.sandbox.program import landlock

ADD = SandboxRun(
    source="def add(a, b):\n    return a + b\n", function="add", arguments_json='{"a":1,"b":2}'
)
SLEEP = SandboxRun(source="import time\ntime.sleep(1000)")


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[JailSandbox]:
    made = await started()
    yield made
    await made.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


@pytest.fixture
def root() -> Iterator[Path]:
    # A separate folder: the shared one may contain the folders of other tests' calls.
    with tempfile.TemporaryDirectory(prefix="strata-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def folders(root: Path) -> list[Path]:
    return list(root.iterdir())


@pytest.mark.parametrize("calls_made", [280, pytest.param(1_000, marks=pytest.mark.slow)])
async def test_nothing_is_left_after_many_calls(root: Path, calls_made: int) -> None:
    engines, before = children(), mounts()
    sandbox = await JailSandbox.start(JailConfig(scratch_root=root))
    if sandbox.isolation is Isolation.NONE:
        await sandbox.close()
        pytest.skip(sandbox.probe.description())
    messy = SandboxRun(
        source=(
            "import os, tempfile\ndef f():\n    open('left', 'w').close()\n    os.mkdir('deep')\n"
            "    tempfile.NamedTemporaryFile(delete=False)\n    print('x' * 1000)\n    return 1"
        ),
        function="f",
    )

    async def calls(count: int) -> None:
        for _ in range(count):
            assert (await sandbox.run(messy)).value_json == "1"

    async def calm() -> tuple[int, int]:
        # Ended processes are reaped a moment later, and then the pool is filled again.
        seen, same = (descriptors(), len(descendants(engines))), 0
        while same < 5:
            await asyncio.sleep(0.1)
            now = (descriptors(), len(descendants(engines)))
            seen, same = now, same + 1 if now == seen else 0
        return seen

    try:
        await asyncio.gather(*(calls(10) for _ in range(4)))
        at_first = await calm()
        await asyncio.gather(*(calls(calls_made // 4 - 10) for _ in range(4)))
        at_last = await calm()
        # There may be fewer descriptors, because connections of other tests end meanwhile.
        assert at_last[0] <= at_first[0]
        assert at_last[1] == at_first[1]
    finally:
        await sandbox.close()
    assert descendants(engines) == set()
    assert mounts() == before
    assert folders(root) == []


async def test_three_hostile_calls_do_not_affect_two_hundred_concurrent_ones(
    sandbox: JailSandbox,
) -> None:
    if sandbox.isolation is not Isolation.NAMESPACES:
        pytest.skip("forking needs namespaces")
    hostile = [
        SandboxRun(
            source="import time\nwhile True:\n    time.sleep(1)",
            limits=Limits(wall_seconds=3.0),
        ),
        SandboxRun(
            source="import sys\nfor _ in range(1024):\n    sys.stdout.write('x' * (1 << 20))"
        ),
        SandboxRun(
            source="import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.01)",
            # Enough for the maximum number of processes with any version of Python.
            limits=Limits(memory_bytes=1 << 30),
        ),
    ]
    good = [
        SandboxRun(source=ADD.source, function="add", arguments_json=json.dumps({"a": n, "b": 1}))
        for n in range(197)
    ]
    results = await asyncio.gather(*(sandbox.run(run) for run in [*hostile, *good]))
    assert [r.status for r in results[:3]] == [
        RunStatus.TIMEOUT,
        RunStatus.OUTPUT,
        RunStatus.PROCESSES,
    ]
    assert "3 seconds" in results[0].detail
    assert "1 MiB" in results[1].detail
    assert "64" in results[2].detail
    assert [r.value_json for r in results[3:]] == [str(n + 1) for n in range(197)]


async def test_cancelling_ends_every_process_of_the_call(sandbox: JailSandbox) -> None:
    if sandbox.isolation is not Isolation.NAMESPACES:
        pytest.skip("forking needs namespaces")
    await sandbox.run(ADD)
    others = children() - {sandbox.server_pid}
    await asyncio.sleep(0.1)
    before = len(descendants(others))
    run = SandboxRun(source="import os, time\nfor _ in range(4):\n    os.fork()\ntime.sleep(1000)")
    task = asyncio.create_task(sandbox.run(run))
    await eventually(lambda: len(descendants(others)) >= before + 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: len(descendants(others)) == before)
    assert (await sandbox.run(ADD)).value_json == "3"


async def test_a_cancelled_waiting_call_takes_no_slot() -> None:
    sandbox = await JailSandbox.start(JailConfig(parallel=1))
    first = asyncio.create_task(sandbox.run(SLEEP))
    second = asyncio.create_task(sandbox.run(ADD))
    await asyncio.sleep(0.1)
    for task in (second, first):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert (await sandbox.run(ADD)).value_json == "3"
    await sandbox.close()


async def test_waiting_does_not_count_towards_the_time_of_a_call() -> None:
    sandbox = await JailSandbox.start(JailConfig(parallel=1))
    nap = SandboxRun(source="import time\ntime.sleep(1)", limits=Limits(wall_seconds=3.5))
    results = await asyncio.gather(*(sandbox.run(nap) for _ in range(4)))
    assert {r.status for r in results} == {RunStatus.OK}
    await sandbox.close()


async def test_a_dead_fork_server_is_replaced(sandbox: JailSandbox) -> None:
    lost = asyncio.create_task(sandbox.run(SLEEP))
    await asyncio.sleep(0.2)
    died = sandbox.server_pid
    assert died is not None
    os.kill(died, signal.SIGKILL)
    result = await lost
    assert result.status is RunStatus.KILLED
    assert "fork server" in result.detail
    assert (await sandbox.run(ADD)).value_json == "3"
    assert sandbox.server_pid not in {None, died}
    await eventually(lambda: not psutil.pid_exists(died))


async def test_closing_ends_running_calls() -> None:
    engines = children()
    sandbox = await JailSandbox.start()
    running = [asyncio.create_task(sandbox.run(SLEEP)) for _ in range(3)]
    await asyncio.sleep(0.2)
    await sandbox.close()
    for task in running:
        with pytest.raises(UnavailableError):
            await task
    with pytest.raises(UnavailableError):
        await sandbox.run(ADD)
    assert descendants(engines) == set()


async def test_all_processes_end_when_the_service_is_killed() -> None:
    worker = Worker(other_user=False, restricted=False)
    process = psutil.Process(worker.pid)
    worker.value("def f():\n    return 1")
    children = process.children(recursive=True)
    assert children
    process.kill()
    worker._process.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not [p for p in alive if p.is_running() and p.status() != "zombie"]
    assert worker._process.stdin
    assert worker._process.stdout
    worker._process.stdin.close()
    worker._process.stdout.close()


async def test_used_resources_are_reported(sandbox: JailSandbox) -> None:
    source = "import time\nx = bytearray(100 << 20)\nbegan = time.process_time()\nwhile time.process_time() - began < 0.2: pass\n"
    result = await sandbox.run(SandboxRun(source=source))
    assert result.status is RunStatus.OK
    assert result.peak_bytes > 100 * MIB
    assert 0.2 <= result.cpu_seconds < 5
    assert result.wall_seconds >= 0.2
    assert result.isolation is sandbox.isolation


async def test_the_minimum_isolation_decides_which_level_is_started() -> None:
    sandbox = await JailSandbox.start(JailConfig(minimum=Isolation.GVISOR))
    assert sandbox.isolation is Isolation.NONE
    assert set(sandbox.probe.missing) == {Isolation.NAMESPACES, Isolation.LANDLOCK}
    result = await sandbox.run(ADD)
    assert (result.status, result.isolation) == (RunStatus.REFUSED, Isolation.NONE)
    # Even with the lowest minimum nothing runs without isolation.
    low = await sandbox.run(SandboxRun(source="x = 1", minimum=Isolation.NONE))
    assert low.status is RunStatus.REFUSED
    await sandbox.close()


def test_below_the_minimum_isolation_nothing_runs() -> None:
    """In a restricted pod namespaces are refused; the error has the reason of the kernel."""
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    worker = Worker(other_user=False, restricted=True, minimum=int(Isolation.NAMESPACES))
    result = worker.run("def f():\n    return 1", minimum=int(Isolation.NAMESPACES))
    assert worker.level is Isolation.NONE
    assert result.status is RunStatus.REFUSED
    assert "unshare" in result.detail
    worker.close()


def test_a_call_can_require_more_isolation_than_the_sandbox_has() -> None:
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    worker = Worker(other_user=False, restricted=True)
    assert worker.level is Isolation.LANDLOCK
    refused = worker.run("def f():\n    return 1", minimum=int(Isolation.NAMESPACES))
    assert refused.status is RunStatus.REFUSED
    assert "namespaces" in refused.detail
    assert "unshare" in refused.detail
    worker.close()


@pytest.mark.parametrize("restricted", [False, True])
def test_a_call_can_read_only_its_own_packages_and_not_write_them(restricted: bool) -> None:
    root = Path(f"/var/tmp/strata-environments-{os.getpid()}")
    for name in ("one", "two"):
        (root / name / f"package_{name}").mkdir(parents=True)
        (root / name / f"package_{name}" / "__init__.py").write_text(f"NAME = '{name}'\n")
    python = {"interpreter": interpreter()} if restricted else {}
    worker = Worker(other_user=False, restricted=restricted, environments=str(root), **python)
    source = """
import os
def f():
    import package_one
    try:
        import package_two
        other = True
    except ImportError:
        other = False
    try:
        open(os.path.join(os.path.dirname(package_one.__file__), "x"), "w")
        written = True
    except OSError:
        written = False
    seen = []
    for path in ("/environments", OTHER, "/packages/../environments/two"):
        try:
            seen.append(os.listdir(path))
        except OSError:
            pass
    return [package_one.NAME, other, written, seen]
""".replace("OTHER", repr(str(root / "two")))
    try:
        assert worker.value(source, packages=str(root / "one")) == ["one", False, False, []]
        # Packages that are added later can be read, too.
        (root / "later").mkdir()
        (root / "later" / "late.py").write_text("X = 1\n")
        assert (
            worker.value("import late\ndef f():\n    return late.X", packages=str(root / "later"))
            == 1
        )
        without = worker.run("import package_one\ndef f():\n    return 1")
        assert without.failure
        assert without.failure.type == "ModuleNotFoundError"
        for bad in ("/etc", str(root), str(root / "one" / ".." / ".." / ".."), str(root / "none")):
            assert worker.run("def f():\n    return 1", packages=bad).status is RunStatus.REFUSED
    finally:
        worker.close()
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        root.rmdir()


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (SandboxRun(source="", arguments_json="[1]"), "not a JSON object"),
        (SandboxRun(source="", arguments_json="{"), "not JSON"),
        (SandboxRun(source="", environment={"A=B": "x"}), "environment variable"),
        (SandboxRun(source="", environment={"A": "x\0y"}), "environment variable"),
        (SandboxRun(source="", hosts=("example.com",)), "hosts"),
        (SandboxRun(source="", packages="/usr"), "packages"),
        (SandboxRun(source="", limits=Limits(wall_seconds=0)), "wall_seconds"),
        (SandboxRun(source="", limits=Limits(processes=0)), "processes"),
    ],
)
async def test_invalid_runs_are_refused(sandbox: JailSandbox, run: SandboxRun, words: str) -> None:
    result = await sandbox.run(run)
    assert result.status is RunStatus.REFUSED
    assert words in result.detail


async def test_the_reason_of_a_refusal_is_read_after_the_process_has_ended(
    sandbox: JailSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = JailedCall._request

    def after_the_end(call: JailedCall) -> bytes:
        """Sends the request after its process has ended, as may happen on a busy machine."""
        poll = select.poll()
        poll.register(call._child.connection, 0)
        poll.poll()
        return request(call)

    monkeypatch.setattr(JailedCall, "_request", after_the_end)
    result = await sandbox.run(SandboxRun(source="x = 1", limits=Limits(memory_bytes=2**70)))
    assert result.status is RunStatus.REFUSED, result
    assert "could not be restricted" in result.detail


async def test_one_slow_call_does_not_delay_the_others(sandbox: JailSandbox) -> None:
    """Slow calls occupy only their own slots."""
    slow = [asyncio.create_task(sandbox.run(SLEEP)) for _ in range(20)]
    results = await asyncio.gather(*(sandbox.run(ADD) for _ in range(20)))
    assert {r.value_json for r in results} == {"3"}
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_sleeping_calls_of_one_project_leave_places_to_others(sandbox: JailSandbox) -> None:
    def of(project: str) -> Any:
        return use(as_project(project))

    with of("noisy"):
        sleeping = [asyncio.create_task(sandbox.run(SLEEP)) for _ in range(60)]
    try:
        await eventually(lambda: sandbox._slots.held("noisy") == sandbox._slots.most)
        assert sandbox._slots.waiting("noisy") == 60 - sandbox._slots.most
        with of("quiet"):
            result = await sandbox.run(ADD)
        assert result.status is RunStatus.OK
        # All calls of the other project still sleep or wait.
        assert not any(task.done() for task in sleeping)
    finally:
        for task in sleeping:
            task.cancel()
        await asyncio.gather(*sleeping, return_exceptions=True)
