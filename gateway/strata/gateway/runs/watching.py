"""Notices when a run moves that is followed here and not held here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from strata.gateway.runs.domain import RunMark, RunStore
from strata.shared.errors import StrataError
from strata.shared.logs import get_logger

_log = get_logger(__name__)


class Watcher:
    """One follower that waits for a run to move.

    Args:
        project_id: The project of the run.
        run_id: The run.
        holder_only: Another holder counts as a move, a stored event does not.

    Attributes:
        mark: Where the run was when the follower last looked; None before that.
    """

    def __init__(self, project_id: str, run_id: str, *, holder_only: bool = False) -> None:
        self._holder_only = holder_only
        self.project_id = project_id
        self.run_id = run_id
        self.mark: RunMark | None = None
        self.moved = asyncio.Event()

    def note(self, mark: RunMark) -> None:
        """Wakes the follower if the run is somewhere else now."""
        if self.mark is None or mark == self.mark:
            return
        if not self._holder_only or mark.address != self.mark.address:
            self.moved.set()

    def wake(self) -> None:
        """Wakes a follower that waits for any move: there is news in this process."""
        if not self._holder_only:
            self.moved.set()

    async def wait(self, seconds: float) -> None:
        """Waits until the run has moved, at most this long."""
        if seconds <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.moved.wait()


class RunWatch:
    """Looks for all followers of this gateway at once, so that a look costs one statement.

    Args:
        store: Where the runs are.
        pause_s: Pause between two looks.
    """

    def __init__(self, store: RunStore, *, pause_s: float) -> None:
        self._store = store
        self._pause_s = pause_s
        self._watchers: dict[str, set[Watcher]] = {}
        self._wanted = asyncio.Event()

    @contextmanager
    def watch(
        self, project_id: str, run_id: str, *, holder_only: bool = False
    ) -> Iterator[Watcher]:
        """Watches a run while the block lasts; see `Watcher`."""
        watcher = Watcher(project_id, run_id, holder_only=holder_only)
        self._watchers.setdefault(run_id, set()).add(watcher)
        self._wanted.set()
        try:
            yield watcher
        finally:
            watching = self._watchers[run_id]
            watching.discard(watcher)
            if not watching:
                del self._watchers[run_id]

    def notify(self, run_id: str) -> None:
        """Wakes those who watch a run: there is news of it in this process."""
        for watcher in self._watchers.get(run_id, ()):
            watcher.wake()

    async def keep_looking(self) -> None:
        """Looks for ever; does nothing while nobody watches."""
        while True:
            if not self._watchers:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                await self.look()
            except StrataError as error:
                _log.warning("no look at followed runs", error=repr(error))
            await asyncio.sleep(self._pause_s)

    async def look(self) -> None:
        """Looks once."""
        watchers = [each for some in self._watchers.values() for each in some]
        wanted = {(watcher.project_id, watcher.run_id) for watcher in watchers}
        for project_id, mark in await self._store.marks(sorted(wanted)):
            for watcher in tuple(self._watchers.get(mark.run_id, ())):
                if watcher.project_id == project_id:
                    watcher.note(mark)
