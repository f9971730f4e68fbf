"""The worker that deletes messages older than the retention of their project."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from strata.recall.domain.messages import Cursor
from strata.recall.domain.retention import TURN_DAYS, OldMessages, SweepResult
from strata.shared.clock import Clock
from strata.shared.logs import get_logger
from strata.shared.polling import keep_polling

_PROJECTS = 100
_AGENTS = 100
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

        Raises:
            UnavailableError: The database cannot be reached.
        """
        total, after = 0, ""
        while projects := await self._old.projects(after, _PROJECTS):
            for project_id, days in projects:
                # Deleting a summary makes the messages that it refers to deletable.
                while deleted := await self._project(project_id, days):
                    total += deleted
            after = projects[-1][0]
        return total

    async def _project(self, project_id: str, days: int) -> int:
        now = self._clock.now()
        before = now - timedelta(days=days)
        begun_before = now - timedelta(days=max(days, TURN_DAYS))
        total, turns, after = 0, 0, ""
        while agents := await self._old.agents(project_id, after, _AGENTS):
            for agent_id in agents:
                total += await self._walk(self._old.sweep, project_id, agent_id, before)
                # After the messages, since a turn stays while it has messages.
                turns += await self._walk(self._old.sweep_turns, project_id, agent_id, begun_before)
            after = agents[-1]
        if total or turns:
            _log.info(
                "old messages were deleted", project_id=project_id, messages=total, turns=turns
            )
        return total

    async def _walk(self, sweep: _Sweep, project_id: str, agent_id: str, before: datetime) -> int:
        total = 0
        cursor: Cursor | None = None
        while True:
            swept = await sweep(project_id, agent_id, before, cursor, self._batch)
            total += swept.deleted
            cursor = swept.cursor
            if cursor is None:
                return total
