"""A sandbox that starts with the first call, since most agents never run custom tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from strata.protocol.errors import UnavailableError
from strata.shared.logs import get_logger
from strata.shared.sandbox import Isolation, RunResult, Sandbox, SandboxRun

_log = get_logger(__name__)


class SandboxOnDemand:
    """Starts a sandbox once, with the first call or with `start`.

    Args:
        start: Starts the sandbox. The next call tries again after a failure.
    """

    def __init__(self, start: Callable[[], Awaitable[Sandbox]]) -> None:
        self._start = start
        self._starting: asyncio.Task[Sandbox] | None = None
        self._closed = False

    @property
    def isolation(self) -> Isolation:
        """The isolation of calls; NONE before the start."""
        task = self._starting
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return Isolation.NONE
        return task.result().isolation

    async def start(self) -> Sandbox:
        """Returns the sandbox after starting it if needed.

        Raises:
            UnavailableError: The sandbox is closed or could not be started.
        """
        if self._closed:
            raise UnavailableError("The sandbox is not running.")
        # Cancelling one call must not cancel the start, since others may wait for it.
        return await asyncio.shield(self._task())

    async def run(self, run: SandboxRun) -> RunResult:
        """See `Sandbox.run`; the first call waits for the start.

        Raises:
            UnavailableError: The sandbox is closed or could not be started.
        """
        return await (await self.start()).run(run)

    async def close(self) -> None:
        """Kills running calls and stops the sandbox, if it was started."""
        self._closed = True
        task, self._starting = self._starting, None
        if task is None:
            return
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(result, BaseException):
            await result.close()

    def _task(self) -> asyncio.Task[Sandbox]:
        task = self._starting
        failed = task is not None and task.done() and (task.cancelled() or task.exception())
        if task is None or failed:
            task = self._starting = asyncio.create_task(self._started())
            # Retrieves the exception, since every call that waits may have been cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _started(self) -> Sandbox:
        try:
            sandbox = await self._start()
        except OSError as error:
            _log.error("sandbox not started", error=str(error))
            raise UnavailableError("The sandbox could not be started.") from error
        return sandbox
