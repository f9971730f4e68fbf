"""The worker that deletes messages older than the retention of their project."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta

from strata.protocol.errors import DeadlineExceededError, StrataError, UnavailableError
from strata.recall.domain.messages import Cursor
from strata.recall.domain.retention import TURN_DAYS, OldMessages, SweepResult
from strata.shared.clock import Clock
from strata.shared.logs import get_logger
from strata.shared.polling import keep_polling

_PROJECTS = 100
_AGENTS = 100
# Batches of one project before the next project has its turn: a project may have millions of
# messages.
_BATCHES_IN_TURN = 10
_Sweep = Callable[[str, str, datetime, Cursor | None, int], Awaitable[SweepResult]]

_log = get_logger(__name__)


class RetentionWorker:
    """Deletes old messages and turns in small batches, periodically.

    Replicas do not coordinate; deleting the same messages twice is harmless.

    Args:
        old: Finds and deletes old messages.
        clock: The current time.
        batch: Messages per transaction.
        every: Seconds between two rounds.
    """

    def __init__(self, old: OldMessages, clock: Clock, *, batch: int, every: float) -> None:
        self._old = old
        self._clock = clock
        self._batch = batch
        self._every = every

    async def run(self) -> None:
        """Runs until cancelled."""
        await keep_polling(self.round, self._every, "retention is paused")

    async def round(self) -> int:
        """Processes all projects once; returns the number of deleted messages.

        An agent whose messages cannot be deleted is left for the next round.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        total, after = 0, ""
        unfinished: list[AsyncIterator[int]] = []
        while projects := await self._old.projects(after, _PROJECTS):
            for project_id, days in projects:
                total += await self._turn(self._project(project_id, days), unfinished)
            after = projects[-1][0]
        while unfinished:
            waiting, unfinished = unfinished, []
            for batches in waiting:
                total += await self._turn(batches, unfinished)
        return total

    async def _turn(self, batches: AsyncIterator[int], unfinished: list[AsyncIterator[int]]) -> int:
        """Deletes some batches of a project; adds it to `unfinished` if there may be more."""
        total = 0
        for _ in range(_BATCHES_IN_TURN):
            deleted = await anext(batches, None)
            if deleted is None:
                return total
            total += deleted
        unfinished.append(batches)
        return total

    async def _project(self, project_id: str, days: int) -> AsyncIterator[int]:
        """Yields the number of deleted messages of each batch."""
        deleted_any = True
        while deleted_any:
            # Deleting a summary makes the messages that it refers to deletable.
            deleted_any = False
            now = self._clock.now()
            before = now - timedelta(days=days)
            begun_before = now - timedelta(days=max(days, TURN_DAYS))
            messages = turns = 0
            after = ""
            while agents := await self._old.agents(project_id, after, _AGENTS):
                for agent_id in agents:
                    async for count in self._walk(self._old.sweep, project_id, agent_id, before):
                        messages += count
                        yield count
                    # After the messages, since a turn stays while it has messages.
                    async for count in self._walk(
                        self._old.sweep_turns, project_id, agent_id, begun_before
                    ):
                        turns += count
                        yield 0
                after = agents[-1]
            deleted_any = messages > 0
            if messages or turns:
                _log.info(
                    "old messages were deleted",
                    project_id=project_id,
                    messages=messages,
                    turns=turns,
                )

    async def _walk(
        self, sweep: _Sweep, project_id: str, agent_id: str, before: datetime
    ) -> AsyncIterator[int]:
        cursor: Cursor | None = None
        limit = self._batch
        while True:
            try:
                swept = await sweep(project_id, agent_id, before, cursor, limit)
            except UnavailableError:
                raise
            except StrataError as error:
                if isinstance(error, DeadlineExceededError) and limit > 1:
                    # Some messages have many megabytes of images.
                    limit = max(1, limit // 4)
                    continue
                _log.warning(
                    "old messages not deleted",
                    project_id=project_id,
                    agent_id=agent_id,
                    error=repr(error),
                )
                return
            yield swept.deleted
            cursor = swept.cursor
            if cursor is None:
                return
