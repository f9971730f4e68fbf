"""Detects changes of runs that are followed here but executed by another gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from strata.gateway.runs.domain.runs import RunMark, RunStore
from strata.protocol.errors import StrataError
from strata.shared.logs import get_logger

_log = get_logger(__name__)


class Watcher:
    """A follower that waits for a change of a run.

    Args:
        project_id: The project of the run.
        run_id: The run.
        holder_only: Whether only another holder counts as a change, and stored events do not.

    Attributes:
        mark: Position of the run when the follower last read it; None before that.
    """

    def __init__(self, project_id: str, run_id: str, *, holder_only: bool = False) -> None:
        self._holder_only = holder_only
        self.project_id = project_id
        self.run_id = run_id
        self.mark: RunMark | None = None
        self.changed = asyncio.Event()

    def note(self, mark: RunMark) -> None:
        """Wakes the follower if the position has changed."""
        if self.mark is None or mark == self.mark:
            return
        if not self._holder_only or mark.address != self.mark.address:
            self.changed.set()

    def wake(self) -> None:
        """Wakes a follower that waits for any change, after a change in this process."""
        if not self._holder_only:
            self.changed.set()

    async def wait(self, seconds: float) -> None:
        """Waits until the run has changed, but at most `seconds`."""
        if seconds <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()


class RunWatch:
    """Polls for all followers of this gateway with a single statement.

    Args:
        store: The runs.
        pause_s: Seconds between two polls.
    """

    def __init__(self, store: RunStore, *, pause_s: float) -> None:
        self._store = store
        self._pause_s = pause_s
        self._watchers: dict[str, set[Watcher]] = {}
        self._has_watchers = asyncio.Event()

    @contextmanager
    def watch(
        self, project_id: str, run_id: str, *, holder_only: bool = False
    ) -> Iterator[Watcher]:
        """Watches a run for the length of the block; see `Watcher`."""
        watcher = Watcher(project_id, run_id, holder_only=holder_only)
        self._watchers.setdefault(run_id, set()).add(watcher)
        self._has_watchers.set()
        try:
            yield watcher
        finally:
            watching = self._watchers[run_id]
            watching.discard(watcher)
            if not watching:
                del self._watchers[run_id]

    def notify(self, run_id: str) -> None:
        """Wakes the watchers of a run that has changed in this process."""
        for watcher in self._watchers.get(run_id, ()):
            watcher.wake()

    async def keep_polling(self) -> None:
        """Polls until it is cancelled; pauses while there are no watchers."""
        while True:
            if not self._watchers:
                self._has_watchers.clear()
                await self._has_watchers.wait()
            try:
                await self.poll()
            except StrataError as error:
                _log.warning("followed runs not polled", error=repr(error))
            await asyncio.sleep(self._pause_s)

    async def poll(self) -> None:
        """Polls once."""
        watchers = [
            watcher for watchers_of_run in self._watchers.values() for watcher in watchers_of_run
        ]
        watched_runs = {(watcher.project_id, watcher.run_id) for watcher in watchers}
        for project_id, mark in await self._store.marks(sorted(watched_runs)):
            for watcher in tuple(self._watchers.get(mark.run_id, ())):
                if watcher.project_id == project_id:
                    watcher.note(mark)
