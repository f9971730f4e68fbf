"""A sandbox that is started on demand."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from strata.protocol.errors import UnavailableError
from strata.shared.sandbox import Isolation, RunResult, RunStatus, SandboxRun
from strata.tool_runner.sandbox.on_demand import SandboxOnDemand

RUN = SandboxRun(source="def f(): pass", function="f")


class Machine:
    """Starts sandboxes when the test allows it, and counts the starts."""

    isolation = Isolation.NAMESPACES

    def __init__(self) -> None:
        self.starts = self.runs = self.closed = 0
        self.gate = asyncio.Event()
        self.broken = False

    async def start(self) -> Machine:
        self.starts += 1
        await self.gate.wait()
        if self.broken:
            raise OSError("no processes left")
        return self

    async def run(self, run: SandboxRun) -> RunResult:
        self.runs += 1
        return RunResult(RunStatus.OK, isolation=self.isolation)

    async def close(self) -> None:
        self.closed += 1


async def test_first_call_starts_the_sandbox_once() -> None:
    machine = Machine()
    sandbox = SandboxOnDemand(machine.start)
    assert (machine.starts, sandbox.isolation) == (0, Isolation.NONE)
    calls = [asyncio.create_task(sandbox.run(RUN)) for _ in range(3)]
    await asyncio.sleep(0)
    machine.gate.set()
    assert [(await call).status for call in calls] == [RunStatus.OK] * 3
    assert await sandbox.start() is machine
    await sandbox.run(RUN)
    assert (machine.starts, machine.runs) == (1, 4)
    assert sandbox.isolation is Isolation.NAMESPACES
    await sandbox.close()
    assert machine.closed == 1


async def test_cancelled_call_does_not_cancel_the_start() -> None:
    machine = Machine()
    sandbox = SandboxOnDemand(machine.start)
    impatient = asyncio.create_task(sandbox.run(RUN))
    patient = asyncio.create_task(sandbox.run(RUN))
    await asyncio.sleep(0)
    impatient.cancel()
    with suppress(asyncio.CancelledError):
        await impatient
    machine.gate.set()
    assert (await patient).status is RunStatus.OK
    assert machine.starts == 1


async def test_a_failed_start_is_repeated_at_the_next_call() -> None:
    machine = Machine()
    machine.gate.set()
    machine.broken = True
    sandbox = SandboxOnDemand(machine.start)
    with pytest.raises(UnavailableError):
        await sandbox.run(RUN)
    assert sandbox.isolation is Isolation.NONE
    machine.broken = False
    assert (await sandbox.run(RUN)).status is RunStatus.OK
    assert machine.starts == 2


async def test_closed_sandbox_is_never_started() -> None:
    machine = Machine()
    sandbox = SandboxOnDemand(machine.start)
    await sandbox.close()
    with pytest.raises(UnavailableError):
        await sandbox.start()
    with pytest.raises(UnavailableError):
        await sandbox.run(RUN)
    assert (machine.starts, machine.closed) == (0, 0)


async def test_a_sandbox_closed_during_its_start_is_closed_afterwards() -> None:
    machine = Machine()
    sandbox = SandboxOnDemand(machine.start)
    starting = asyncio.create_task(sandbox.start())
    await asyncio.sleep(0)
    closing = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    machine.gate.set()
    await asyncio.gather(closing, starting)
    assert machine.closed == 1
