"""A sandbox that is started when it is first wanted: most agents never run a tool of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from strata.shared.errors import UnavailableError
from strata.shared.logs import get_logger
from strata.shared.telemetry import Telemetry
from strata.tool_execution.domain.sandbox import Isolation, Run, RunResult, Sandbox

ISOLATION = "strata_sandbox_isolation"
"""1 for the isolation that is in force, 0 for the others."""
CALLS = "strata_sandbox_calls_total"
"""Calls by the isolation that they ran in, and how they ended."""
_log = get_logger(__name__)


class SandboxOnDemand:
    """Starts a sandbox once, with the first call or with `prepare`.

    Args:
        start: Starts it. A start that fails is tried again with the next call.
        telemetry: Where its isolation and its calls are told; None keeps them to itself.
    """

    def __init__(
        self, start: Callable[[], Awaitable[Sandbox]], telemetry: Telemetry | None = None
    ) -> None:
        self._start = start
        self._telemetry = telemetry or Telemetry()
        self._starting: asyncio.Task[Sandbox] | None = None
        self._closed = False

    @property
    def isolation(self) -> Isolation:
        """What keeps calls from the machine here; NONE before it is started."""
        task = self._starting
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return Isolation.NONE
        return task.result().isolation

    def prepare(self) -> None:
        """Begins to start it, for calls that are to be expected."""
        if not self._closed:
            self._task()

    async def run(self, run: Run) -> RunResult:
        """See `Sandbox.run`; the first call waits for the start.

        Raises:
            UnavailableError: It is closed, or could not be started.
        """
        if self._closed:
            raise UnavailableError("The sandbox is not running.")
        # Who gives up waiting does not end the start, which others wait for too.
        sandbox = await asyncio.shield(self._task())
        result = await sandbox.run(run)
        self._telemetry.counter(
            CALLS, isolation=result.isolation.label, status=result.status.value
        ).inc()
        return result

    async def close(self) -> None:
        """Kills what runs and ends the sandbox, if there is one."""
        self._closed = True
        task, self._starting = self._starting, None
        if task is None:
            return
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(found, BaseException):
            await found.close()

    def _task(self) -> asyncio.Task[Sandbox]:
        task = self._starting
        failed = task is not None and task.done() and (task.cancelled() or task.exception())
        if task is None or failed:
            task = self._starting = asyncio.create_task(self._started())
            # Of a start that was only prepared nobody may ever ask.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _started(self) -> Sandbox:
        try:
            sandbox = await self._start()
        except OSError as error:
            _log.error("sandbox not started", error=str(error))
            raise UnavailableError("The sandbox could not be started.") from error
        _log.info("sandbox started", isolation=sandbox.isolation.label)
        for level in Isolation:
            gauge = self._telemetry.gauge(ISOLATION, isolation=level.label)
            gauge.set(float(level is sandbox.isolation))
        return sandbox
