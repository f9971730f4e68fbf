"""The client of the tool runner: its connections, and its measurements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from polling import settle
from strata.api.tool_runner.v1 import sandbox_service_pb2 as pb
from strata.protocol.errors import UnavailableError
from strata.shared.metric_names import SANDBOX_CALLS, SANDBOX_ISOLATION
from strata.shared.sandbox import Isolation, RunStatus, SandboxRun
from strata.shared.telemetry import Telemetry
from strata.tool_execution.clients.sandbox import SandboxClient

RUN = SandboxRun(source="def f(): pass", function="f")


class Runner:
    """A stub of a runner that counts its calls."""

    def __init__(self) -> None:
        self.asked = self.runs = 0
        self.away = False

    async def GetIsolation(self, request: pb.GetIsolationRequest) -> pb.GetIsolationResponse:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise UnavailableError("no runner")
        if request.running_only:
            return pb.GetIsolationResponse()
        return pb.GetIsolationResponse(isolation=pb.SANDBOX_ISOLATION_NAMESPACES)

    async def RunCode(self, request: pb.RunCodeRequest) -> AsyncIterator[pb.RunCodeResponse]:
        self.runs += 1
        if self.away:
            raise UnavailableError("no runner")
        yield pb.RunCodeResponse(status="ok", isolation=pb.SANDBOX_ISOLATION_NAMESPACES)


@pytest.fixture
def runner() -> Any:
    return Runner()


@pytest.fixture(autouse=True)
def _no_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the wait for a call's completion: the streams of the stub are plain generators."""
    monkeypatch.setattr(
        "strata.tool_execution.clients.sandbox.complete_in_background", lambda call: None
    )


async def test_isolation_and_calls_are_measured(runner: Any) -> None:
    telemetry = Telemetry()
    sandbox = SandboxClient(runner, telemetry)
    assert sandbox.isolation is Isolation.NONE
    for _ in range(2):
        assert (await sandbox.run(RUN)).status is RunStatus.OK
    in_force = {
        level: telemetry.gauge(SANDBOX_ISOLATION, isolation=level.label).value
        for level in Isolation
    }
    assert {level for level, value in in_force.items() if value} == {Isolation.NAMESPACES}
    assert telemetry.total(SANDBOX_CALLS, isolation="namespaces", status="ok") == 2
    assert (runner.asked, runner.runs) == (1, 2)


async def test_prepare_connects_once_in_the_background(runner: Any) -> None:
    sandbox = SandboxClient(runner)
    sandbox.prepare()
    sandbox.prepare()
    async with asyncio.timeout(10):
        while sandbox.isolation is Isolation.NONE:
            await asyncio.sleep(0)
    sandbox.prepare()
    await sandbox.run(RUN)
    assert (runner.asked, runner.runs) == (1, 1)
    await sandbox.close()


async def test_failed_prepare_is_tried_again_by_the_next_call(runner: Any) -> None:
    runner.away = True
    sandbox = SandboxClient(runner)
    sandbox.prepare()
    await settle()
    with pytest.raises(UnavailableError):
        await sandbox.run(RUN)
    assert (runner.asked, runner.runs) == (2, 0)
    runner.away = False
    assert (await sandbox.run(RUN)).status is RunStatus.OK


async def test_call_to_a_lost_runner_is_killed_and_not_sent_again(runner: Any) -> None:
    sandbox = SandboxClient(runner)
    await sandbox.run(RUN)
    runner.away = True
    result = await sandbox.run(RUN)
    assert result.status is RunStatus.KILLED
    assert runner.runs == 2


async def test_check_fails_without_a_runner_and_starts_no_sandbox(runner: Any) -> None:
    sandbox = SandboxClient(runner)
    assert await sandbox.check() is Isolation.NONE
    assert sandbox.isolation is Isolation.NONE
    runner.away = True
    with pytest.raises(UnavailableError):
        await sandbox.check()
