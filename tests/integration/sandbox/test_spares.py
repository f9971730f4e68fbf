"""Spare processes: confined before their call, for one call of their shape, ended with the pool."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from polling import eventually
from strata.shared.sandbox import MIB, Isolation, Limits, RunStatus, SandboxRun
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox

WARM = 2
# Returns what a call observes of its confinement, and of earlier calls of its process.
LOOK = """
import json, os, resource, socket
def look():
    before = os.listdir(".")
    open("mine", "w").close()
    space = os.statvfs(".")
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
        network = True
    except OSError:
        network = False
    return {
        "before": before,
        "memory": resource.getrlimit(resource.RLIMIT_AS)[0],
        "cpu": resource.getrlimit(resource.RLIMIT_CPU)[0],
        "processes": resource.getrlimit(resource.RLIMIT_NPROC)[0] - 8,
        "disk": space.f_blocks * space.f_frsize,
        "files": space.f_files - 1,
        "network": network,
        "word": os.environ.get("WORD", ""),
    }
"""


class SilentProxy:
    """A proxy that never gets a connection."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._listener: Any = None

    async def serve(self, listener: Any) -> None:
        self._listener = listener

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[JailSandbox]:
    made = await JailSandbox.start(
        JailConfig(warm=WARM, minimum=Isolation.NAMESPACES, proxies=SilentProxy)
    )
    if made.isolation is Isolation.NONE:
        await made.close()
        pytest.skip(f"no namespaces can be had here: {made.probe.description()}")
    yield made
    await made.close()


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def descriptors(pid: int) -> set[int]:
    """Returns the open descriptors; some builds of Python keep /dev/urandom open."""
    return {
        int(path.name)
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if path.readlink() != Path("/dev/urandom")
    }


def namespaces(pid: int) -> set[str]:
    return {str(Path(f"/proc/{pid}/ns/{name}").readlink()) for name in ("user", "pid", "mnt")}


def waiting(sandbox: JailSandbox) -> list[psutil.Process]:
    """Returns the spare processes, which are confined and wait for a call."""
    children = []
    for process in psutil.Process(sandbox.server_pid).children(recursive=True):
        try:
            status = status_of(process.pid)
        except OSError:
            continue
        if "Seccomp:\t2" in status and "State:\tZ" not in status:
            children.append(process)
    return children


def another_waits(sandbox: JailSandbox, besides: set[int]) -> bool:
    return bool({process.pid for process in waiting(sandbox)} - besides)


async def all_waiting(sandbox: JailSandbox) -> list[psutil.Process]:
    await eventually(lambda: len(waiting(sandbox)) == WARM)
    return waiting(sandbox)


async def one_waiting(sandbox: JailSandbox) -> list[int]:
    await eventually(lambda: len(waiting(sandbox)) == sandbox.spare_count == 1)
    return [process.pid for process in waiting(sandbox)]


def limits(**fields: Any) -> Limits:
    return Limits(**{"wall_seconds": 20.0, **fields})


def look(word: str = "", hosts: Sequence[str] = (), **fields: Any) -> SandboxRun:
    environment = {"WORD": word} if word else {}
    return SandboxRun(
        LOOK, "look", environment=environment, hosts=tuple(hosts), limits=limits(**fields)
    )  # fmt: skip


async def seen(sandbox: JailSandbox, run: SandboxRun) -> dict[str, Any]:
    result = await sandbox.run(run)
    assert result.status is RunStatus.OK, result
    value: dict[str, Any] = json.loads(result.value_json)
    assert value["before"] == []
    assert value["memory"] == run.limits.memory_bytes
    assert value["cpu"] == run.limits.cpu_seconds
    assert value["processes"] == run.limits.processes
    assert value["disk"] == run.limits.disk_bytes
    assert value["files"] == run.limits.files
    assert value["network"] is bool(run.hosts)
    assert value["word"] == run.environment.get("WORD", "")
    return value


async def test_a_spare_process_is_confined_before_its_call(
    sandbox: JailSandbox,
) -> None:
    assert sandbox.server_pid is not None
    fork_server = namespaces(sandbox.server_pid)
    for process in await all_waiting(sandbox):
        status = status_of(process.pid)
        assert "NoNewPrivs:\t1" in status
        assert "CapEff:\t0000000000000000" in status
        assert "CapBnd:\t0000000000000000" in status
        assert descriptors(process.pid) == {0, 1, 2, 3}
        assert not namespaces(process.pid) & fork_server


async def test_a_process_serves_one_call(sandbox: JailSandbox) -> None:
    used: set[int] = set()
    for _ in range(4):
        spares = {process.pid for process in await all_waiting(sandbox)}
        assert not spares & used
        await seen(sandbox, look("secret"))
        await eventually(partial(another_waits, sandbox, spares))
        # The process of the call has ended; before, it was one of the spare processes.
        left = {process.pid for process in await all_waiting(sandbox)}
        gone = spares - left
        assert len(gone) == 1
        assert not any(psutil.pid_exists(pid) for pid in gone)
        used |= gone


async def test_limits_and_network_of_a_call_apply_to_every_waiting_process(
    sandbox: JailSandbox,
) -> None:
    small: dict[str, Any] = {
        "memory_bytes": 512 * MIB,
        "cpu_seconds": 3,
        "processes": 9,
        "files": 50,
    }
    small["disk_bytes"] = MIB
    kinds = [
        look(),
        look("one", **small),
        look("two", hosts=["a.example.com"]),
        look("three", **{**small, "files": 60}),
        look("four", hosts=["b.example.com"], **small),
    ]
    for run in [*kinds, *reversed(kinds), *kinds[::2] * 2]:
        await seen(sandbox, run)
    await asyncio.gather(*(seen(sandbox, run) for run in kinds * 2))


async def test_more_calls_than_spare_processes_are_run(sandbox: JailSandbox) -> None:
    runs = [look(f"word {n}") for n in range(4 * WARM)]
    await asyncio.gather(*(seen(sandbox, run) for run in runs))
    await all_waiting(sandbox)


async def test_without_spare_processes_every_call_gets_a_new_process() -> None:
    sandbox = await JailSandbox.start(JailConfig(warm=0))
    if sandbox.isolation is Isolation.NONE:
        pytest.skip(sandbox.probe.description())
    add = SandboxRun(
        "def add(a, b):\n    return a + b\n", "add", '{"a": 1, "b": 2}', limits=limits()
    )
    assert (await sandbox.run(add)).value_json == "3"
    await eventually(lambda: waiting(sandbox) == [])
    await sandbox.close()


async def test_an_idle_sandbox_keeps_one_waiting_process() -> None:
    sandbox = await JailSandbox.start(JailConfig(warm=3, idle_s=0.2))
    if sandbox.isolation is Isolation.NONE:
        pytest.skip(sandbox.probe.description())
    (first,) = await one_waiting(sandbox)
    add = SandboxRun("def add(a, b):\n    return a + b\n", "add", '{"a": 1, "b": 2}')
    assert (await sandbox.run(add)).value_json == "3"
    (second,) = await one_waiting(sandbox)
    assert first != second
    await sandbox.close()


async def test_a_spare_that_was_killed_is_replaced(sandbox: JailSandbox) -> None:
    for process in await all_waiting(sandbox):
        os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: waiting(sandbox) == [])
    await seen(sandbox, look("after"))
    await all_waiting(sandbox)


async def test_a_call_cannot_reach_the_waiting_processes(sandbox: JailSandbox) -> None:
    await seen(sandbox, look())
    before = {process.pid for process in await all_waiting(sandbox)}
    hostile = SandboxRun(
        "import os, signal\n"
        "def f(pids):\n"
        "    said = []\n"
        "    for pid in [-1, *pids, *range(2, 300)]:\n"
        "        try:\n"
        "            os.kill(pid, signal.SIGKILL)\n"
        "            said.append(pid)\n"
        "        except OSError:\n"
        "            pass\n"
        "    for pid in pids:\n"
        "        for name in ('mem', 'environ', 'fd', 'root'):\n"
        "            if os.path.exists(f'/proc/{pid}/{name}'):\n"
        "                said.append(name)\n"
        "    return said\n",
        "f",
        f'{{"pids": {sorted(before)}}}',
        limits=limits(),
    )
    result = await sandbox.run(hostile)
    # In a separate namespace, pid -1 matches no process, which is not an error on every kernel.
    assert result.value_json in {"[]", "[-1]"}, result
    await eventually(lambda: len(waiting(sandbox)) == WARM)
    # All spare processes still wait, except the one of the call.
    assert len(before & {process.pid for process in waiting(sandbox)}) == WARM - 1
    await seen(sandbox, look())


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder of environments, in a place that any user can read."""
    made = Path(f"/var/tmp/strata-spares-{os.getpid()}")
    made.mkdir()
    yield made
    shutil.rmtree(made)


def make(folder: Path, name: str) -> None:
    folder.mkdir()
    (folder / "thing.py").write_text(f"NAME = '{name}'\n")


async def test_rebuilt_packages_are_used(root: Path) -> None:
    folder = root / "key"
    make(folder, "old")
    sandbox = await JailSandbox.start(JailConfig(warm=WARM, environments=root))
    run = SandboxRun(
        "import thing\ndef f():\n    return thing.NAME\n",
        "f",
        packages=str(folder),
        limits=limits(),
    )
    try:
        if sandbox.isolation is Isolation.NONE:
            pytest.skip(sandbox.probe.description())
        for _ in range(3):
            assert (await sandbox.run(run)).value_json == '"old"'
        await eventually(lambda: len(waiting(sandbox)) == WARM)
        folder.rename(root / "gone")
        make(folder, "new")
        assert (await sandbox.run(run)).value_json == '"new"'
        # A call without packages cannot import them.
        plain = await sandbox.run(SandboxRun(run.source, "f", limits=limits()))
        assert plain.failure is not None
        assert plain.failure.type == "ModuleNotFoundError"
    finally:
        await sandbox.close()


async def test_closing_ends_all_waiting_processes() -> None:
    sandbox = await JailSandbox.start(JailConfig(warm=WARM))
    if sandbox.isolation is Isolation.NONE:
        pytest.skip(sandbox.probe.description())
    spares = await all_waiting(sandbox)
    closing = [asyncio.create_task(sandbox.run(look())) for _ in range(3)]
    await sandbox.close()
    await asyncio.gather(*closing, return_exceptions=True)
    await eventually(lambda: not any(process.is_running() for process in spares))
    assert sandbox.server_pid is None
