"""Keeps messages no longer than their project wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from strata.recall.domain.messages import Cursor
from strata.recall.domain.retention import TURN_DAYS, OldMessages, Swept
from strata.recall.index import MessageIndex
from strata.recall.store.retention import ForgottenMessages
from strata.shared.clock import Clock
from strata.shared.errors import StrataError
from strata.shared.logs import get_logger

_PROJECTS = 100
_AGENTS = 100
_POINTS = 500
_Sweep = Callable[[str, str, datetime, Cursor | None, int], Awaitable[Swept]]

_log = get_logger(__name__)


class RetentionWorker:
    """Deletes what is too old, in small batches, again and again.

    Replicas need not agree who does it: whoever comes second finds nothing.

    Args:
        old: What is too old.
        clock: Tells what that is.
        batch: Messages looked through in one transaction.
        every: Seconds between two rounds.
    """

    def __init__(self, old: OldMessages, clock: Clock, *, batch: int, every: float) -> None:
        self._old = old
        self._clock = clock
        self._batch = batch
        self._every = every

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            try:
                await self.round()
            except StrataError as error:
                _log.warning("retention waits", reason=error.reason.value, message=error.message)
            await asyncio.sleep(self._every)

    async def round(self) -> int:
        """Goes through all projects once; returns how many messages were deleted.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        total, after = 0, ""
        while projects := await self._old.projects(after, _PROJECTS):
            for project_id, days in projects:
                # What a summary had held is free when the summary is gone.
                while forgotten := await self._project(project_id, days):
                    total += forgotten
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
                # After the messages: a turn goes once the last message of it is gone.
                turns += await self._walk(self._old.sweep_turns, project_id, agent_id, begun_before)
            after = agents[-1]
        if total or turns:
            _log.info(
                "old messages are forgotten", project_id=project_id, messages=total, turns=turns
            )
        return total

    async def _walk(self, sweep: _Sweep, project_id: str, agent_id: str, before: datetime) -> int:
        total = 0
        cursor: Cursor | None = None
        while True:
            swept = await sweep(project_id, agent_id, before, cursor, self._batch)
            total += swept.forgotten
            cursor = swept.cursor
            if cursor is None:
                return total


class ForgottenPoints:
    """What the index still has of deleted messages; a `Backlog` of the indexer."""

    def __init__(self, forgotten: ForgottenMessages, index: MessageIndex) -> None:
        self._forgotten = forgotten
        self._index = index

    async def ensure(self) -> None:
        """Needs nothing: the collection is another backlog's to make."""

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        found = await self._forgotten.find(_POINTS)
        for project_id, ids in found.items():
            await self._index.remove(project_id, ids)
            await self._forgotten.done(project_id, ids)
        return bool(found)
