"""The sandbox as a process beside the service, reached over a socket."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import grpc.aio
import psutil
import pytest
import pytest_asyncio

from callers import TokenKeys
from child_processes import SOURCE_PATH
from polling import eventually
from strata.api.tool_runner.v1 import sandbox_service_pb2 as pb
from strata.api.tool_runner.v1 import sandbox_service_pb2_grpc as pb_grpc
from strata.protocol.errors import UnavailableError
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.context import RequestContext, use
from strata.shared.sandbox import Isolation, Limits, RunStatus, SandboxRun
from strata.tool_execution.clients.sandbox import SandboxClient, run_to_proto
from strata.tool_runner.main import is_serving

ADD = SandboxRun("def add(a, b):\n    return a + b\n", "add", '{"a": 1, "b": 2}')
SPIN = SandboxRun("def spin():\n    while True:\n        pass\n", "spin")
SLEEP = SandboxRun("import time\ndef sleep():\n    time.sleep(60)\n", "sleep")


@dataclass
class Runner:
    """A runner that is not started yet."""

    socket: Path
    public_key: str
    packages: Path

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"

    @contextmanager
    def started(
        self, stderr: IO[bytes] | None = None, **more: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "PYTHONPATH": SOURCE_PATH,
            "STRATA_TOOL_RUNNER_HOST": self.address,
            "STRATA_TOOL_RUNNER_TOKEN_PUBLIC_KEYS": self.public_key,
            "STRATA_TOOL_RUNNER_PACKAGES_PATH": str(self.packages),
            "STRATA_TOOL_RUNNER_LOG_LEVEL": "ERROR",
            "STRATA_TOOL_RUNNER_DRAIN_S": "0",
            "STRATA_TOOL_RUNNER_GRACE_S": "0",
            **more,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "strata.tool_runner.main"],
            env=environment,
            stderr=stderr,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def runner(keys: TokenKeys) -> Iterator[Runner]:
    # Not in pytest's folder: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="runner-") as folder:
        (Path(folder) / "packages").mkdir()
        Path(folder).chmod(0o755)
        yield Runner(Path(folder) / "socket", keys.public, Path(folder) / "packages")


@pytest_asyncio.fixture
async def stub(runner: Runner, keys: TokenKeys) -> AsyncIterator[pb_grpc.SandboxServiceStub]:
    caller = keys.verifier.verify(keys.signer.mint("organization-1", "project-1", "key-1", ()))
    factory = ChannelFactory()
    try:
        with use(RequestContext(caller=caller)):
            yield pb_grpc.SandboxServiceStub(
                factory.channel(runner.address, services_of("tool_runner"))
            )
    finally:
        await factory.close()


async def connected(stub: pb_grpc.SandboxServiceStub) -> SandboxClient:
    sandbox = SandboxClient(stub)
    async with asyncio.timeout(60):
        while True:
            try:
                await sandbox.connect()
                return sandbox
            except UnavailableError:
                await asyncio.sleep(0.05)


def family(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


async def test_calls_are_run_in_the_other_process(
    runner: Runner, stub: pb_grpc.SandboxServiceStub
) -> None:
    before = family(os.getpid())
    with runner.started() as process:
        sandbox = await connected(stub)
        assert sandbox.isolation >= Isolation.LANDLOCK
        result = await sandbox.run(ADD)
        assert (result.status, result.value_json) == (RunStatus.OK, "3")
        assert result.isolation is sandbox.isolation
        # All new sandbox processes are below the runner. (Those in `before` belong to other tests.)
        assert _jails() & family(os.getpid()) - before <= family(process.pid)


def _jails() -> set[int]:
    return {
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any("program import server" in part for part in process.info["cmdline"] or ())
    }


async def test_calls_that_succeed_are_logged_as_such(
    runner: Runner, stub: pb_grpc.SandboxServiceStub, tmp_path: Path
) -> None:
    async def answerer(question: str) -> str:
        return json.dumps({"n": 0, "large": ""})

    # Not capfd: it loses text that another process writes between its read and its truncation.
    log = tmp_path / "runner.log"

    def codes() -> Counter[str]:
        lines = log.read_bytes().splitlines(keepends=True)
        whole_lines = [line for line in lines if line.endswith(b"\n")]
        entries = [json.loads(line) for line in whole_lines if b'"event": "rpc"' in line]
        return Counter(
            f"{entry['method'].rpartition('/')[2]} {entry['code']}"
            for entry in entries
            if entry["method"].endswith("Code")
        )

    with (
        log.open("wb") as stderr,
        runner.started(stderr, STRATA_TOOL_RUNNER_LOG_LEVEL="DEBUG"),
    ):
        sandbox = await connected(stub)
        for _ in range(20):
            assert (await sandbox.run(ADD)).status is RunStatus.OK
            await sandbox.run(replace(ASK, answerer=answerer))
        await eventually(lambda: codes().total() == 40)
    assert codes() == {"RunCode OK": 20, "RunAskingCode OK": 20}


async def test_requests_and_answers_pass_unchanged(
    runner: Runner, stub: pb_grpc.SandboxServiceStub
) -> None:
    package = runner.packages / "0123"
    package.mkdir()
    (package / "helper.py").write_text("ANSWER = 42\n", encoding="utf-8")
    source = (
        "import os, sys\n"
        "def look(text):\n"
        "    import helper\n"
        "    print('said')\n"
        "    print('complained', file=sys.stderr)\n"
        "    return {'text': text, 'secret': os.environ['TOKEN'], 'answer': helper.ANSWER}\n"
    )
    large = "ä" * 1_000_000
    with runner.started():
        sandbox = await connected(stub)
        result = await sandbox.run(
            SandboxRun(
                source,
                "look",
                json.dumps({"text": large}, ensure_ascii=False),
                {"TOKEN": "s3cret"},
                packages=str(package),
            )
        )
        assert result.status is RunStatus.OK, result
        assert json.loads(result.value_json) == {"text": large, "secret": "s3cret", "answer": 42}
        assert (result.stdout, result.stderr) == ("said\n", "complained\n")
        assert result.wall_seconds > 0
        assert result.peak_bytes > 0

        raised = await sandbox.run(SandboxRun("def f():\n    raise ValueError('no')\n", "f"))
        assert raised.status is RunStatus.TOOL_ERROR
        assert raised.failure is not None
        assert (raised.failure.type, raised.failure.message) == ("ValueError", "no")

        slow = await sandbox.run(replace(SLEEP, limits=replace(Limits(), wall_seconds=0.2)))
        assert slow.status is RunStatus.TIMEOUT

        elsewhere = await sandbox.run(replace(ADD, packages="/usr/lib"))
        assert elsewhere.status is RunStatus.REFUSED


ASK = SandboxRun(
    "def ask(count):\n"
    "    return [_strata_ask({'n': n, 'large': 'ä' * 100_000})['n'] for n in range(count)]\n",
    "ask",
    '{"count": 3}',
)


async def test_nested_calls_of_code_are_answered_by_the_caller(
    runner: Runner, stub: pb_grpc.SandboxServiceStub
) -> None:
    asked: list[int] = []

    async def answerer(question: str) -> str:
        values = json.loads(question)
        asked.append(values["n"])
        assert values["large"] == "ä" * 100_000
        return json.dumps({"n": values["n"] * 2, "large": values["large"]})

    waits = asyncio.Event()
    left: list[bool] = []

    async def never(question: str) -> str:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.append(True)
        return question

    async def fails(question: str) -> str:
        raise UnavailableError("nobody is there")

    with runner.started() as process:
        sandbox = await connected(stub)
        result = await sandbox.run(replace(ASK, answerer=answerer))
        assert (result.status, result.value_json, asked) == (RunStatus.OK, "[0, 2, 4]", [0, 1, 2])
        # No nested call arrives, because this code has no channel for nested calls.
        result = await sandbox.run(ASK)
        assert result.failure is not None
        assert result.failure.type == "NameError"
        # When the code has reached its time limit, its nested call is cancelled.
        limits = replace(Limits(), wall_seconds=0.5)
        result = await sandbox.run(replace(ASK, answerer=never, limits=limits))
        assert (result.status, left) == (RunStatus.TIMEOUT, [True])
        # When the call is cancelled, it leaves no process.
        waits.clear()
        waiting = len(family(process.pid))
        task = asyncio.create_task(sandbox.run(replace(ASK, answerer=never)))
        await asyncio.wait_for(waits.wait(), 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert left == [True, True]
        await eventually(lambda: len(family(process.pid)) <= waiting + 1)
        with pytest.raises(UnavailableError, match="nobody is there"):
            await sandbox.run(replace(ASK, answerer=fails))


async def test_a_cancelled_call_leaves_no_process(
    runner: Runner, stub: pb_grpc.SandboxServiceStub
) -> None:
    with runner.started() as process:
        sandbox = await connected(stub)
        await sandbox.run(ADD)
        waiting = len(family(process.pid))
        calls = [asyncio.create_task(sandbox.run(SPIN)) for _ in range(3)]
        await eventually(lambda: spinning(process.pid) >= 3)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await eventually(
            lambda: spinning(process.pid) == 0 and len(family(process.pid)) <= waiting + 1
        )


def spinning(pid: int) -> int:
    """Returns how many calls of a runner have used a tenth of a second of processor time."""
    count = 0
    # A fork server uses more than that at its start, so only processes without children count.
    for child in psutil.Process(pid).children(recursive=True):
        try:
            times = child.cpu_times()
            count += times.user + times.system > 0.1 and not child.children()
        except psutil.NoSuchProcess:
            continue
    return count


async def test_a_call_whose_runner_dies_is_killed_and_the_next_runner_serves(
    runner: Runner, stub: pb_grpc.SandboxServiceStub
) -> None:
    with runner.started() as process:
        sandbox = await connected(stub)
        call = asyncio.create_task(sandbox.run(SPIN))
        await eventually(lambda: spinning(process.pid) > 0)
        jailed = family(process.pid)
        process.send_signal(signal.SIGKILL)
        result = await call
        assert result.status is RunStatus.KILLED
        assert "lost" in result.detail
        await eventually(lambda: not any(psutil.pid_exists(pid) for pid in jailed))
    assert (await sandbox.run(ADD)).status is RunStatus.KILLED
    with runner.started():
        await connected(stub)
        assert (await sandbox.run(ADD)).value_json == "3"


async def test_a_call_before_the_runner_is_available_fails_and_is_not_lost(
    runner: Runner, stub: pb_grpc.SandboxServiceStub
) -> None:
    sandbox = SandboxClient(stub)
    with pytest.raises(UnavailableError):
        await sandbox.run(ADD)
    with runner.started():
        await connected(stub)
        assert (await sandbox.run(ADD)).value_json == "3"


async def test_a_probe_returns_whether_the_runner_serves(runner: Runner) -> None:
    assert not await is_serving(runner.address)
    with runner.started():
        await eventually(lambda: is_serving(runner.address))
        # Only the owner and the group may open the socket.
        assert stat.S_IMODE(runner.socket.stat().st_mode) & 0o777 == 0o770


async def test_calls_without_a_token_are_refused(
    runner: Runner, stub: pb_grpc.SandboxServiceStub
) -> None:
    with runner.started():
        await connected(stub)
        async with grpc.aio.insecure_channel(runner.address) as channel:
            stranger = pb_grpc.SandboxServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stranger.GetIsolation(pb.GetIsolationRequest())
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in stranger.RunCode(run_to_proto(ADD)):
                    pass
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


class LastSteps(pb_grpc.SandboxServiceServicer):
    """A runner that works after its answer, and records whether that work was interrupted."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    async def GetIsolation(self, request: Any, context: Any) -> pb.GetIsolationResponse:
        return pb.GetIsolationResponse(isolation=pb.SANDBOX_ISOLATION_NAMESPACES)

    async def RunCode(self, request: Any, context: Any) -> AsyncIterator[pb.RunCodeResponse]:
        try:
            yield pb.RunCodeResponse(status="ok", value_json="3")
            await asyncio.sleep(0.2)
        except BaseException as error:
            self.ends.append(repr(error))
            raise
        self.ends.append("OK")


async def test_a_finished_call_is_not_interrupted_at_its_end() -> None:
    """The runner would log it as CANCELLED."""
    server, servicer = grpc.aio.server(), LastSteps()
    pb_grpc.add_SandboxServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            sandbox = SandboxClient(pb_grpc.SandboxServiceStub(channel))
            for _ in range(3):
                await sandbox.run(ADD)
            await eventually(lambda: len(servicer.ends) >= 3)
    finally:
        await server.stop(None)
    assert servicer.ends == ["OK"] * 3
