"""Background worker that deletes rows after their retention time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from strata.gateway.retention.store import PostgresRetention, RetainedKind
from strata.protocol.errors import DeadlineExceededError, StrataError
from strata.shared.logs import get_logger
from strata.shared.polling import keep_polling

_PROJECTS = 100
# Batches of one project before the next project has its turn: a project may have millions of rows.
_BATCHES_IN_TURN = 10
# A backlog grows with each finished run, so it is checked more often.
_BACKLOG_EVERY_S = 30.0

_Delete = Callable[..., Awaitable[int]]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionTerms:
    """Retention times, and the pace of the deletion.

    Attributes:
        event_days: Maximum number of days to keep the events of a finished run, and decided
            approvals; 0 for no limit of the server.
        delivery_days: Days to keep finished deliveries, and webhooks of single runs.
        backlog: Maximum number of pending deliveries per project.
        every_s: Seconds between two rounds.
        batch: Rows per transaction.
        pause_s: Seconds between two batches, which leave the database to other work.
    """

    event_days: float = 90.0
    delivery_days: float = 30.0
    backlog: int = 10_000
    every_s: float = 3600.0
    batch: int = 200
    pause_s: float = 0.1


class RetentionWorker:
    """Deletes old rows of all projects.

    Args:
        store: The rows.
        message_days: Returns the days for which a project keeps messages; 0 keeps them forever.
        terms: Retention times.
    """

    def __init__(
        self,
        store: PostgresRetention,
        message_days: Callable[[str], Awaitable[float]],
        terms: RetentionTerms,
    ) -> None:
        self._store = store
        self._message_days = message_days
        self._terms = terms

    async def keep_deleting(self) -> None:
        """Deletes old rows until it is cancelled."""
        every_s = self._terms.every_s
        async with asyncio.TaskGroup() as group:
            # Apart, since a round may take hours where the retention was just shortened.
            group.create_task(
                keep_polling(
                    self.drop_backlogs, min(_BACKLOG_EVERY_S, every_s), "backlogs are not dropped"
                )
            )
            group.create_task(keep_polling(self.delete_old, every_s, "retention waits"))

    async def delete_old(self) -> int:
        """Deletes old rows of all projects; returns their number."""
        total = 0
        event_days: dict[str, float] = {}
        for kind in RetainedKind:
            if kind is RetainedKind.BACKLOG:
                continue
            unfinished: list[tuple[str, _Delete]] = []
            async for project_id in self._projects(kind):
                days = self._terms.delivery_days
                if kind in (RetainedKind.EVENTS, RetainedKind.APPROVALS):
                    if project_id not in event_days:
                        event_days[project_id] = await self._event_days(project_id)
                    days = event_days[project_id]
                if days:
                    delete = partial(self._store.delete, project_id, kind, days=days)
                    count, has_more = await self._batches(project_id, delete)
                    total += count
                    if has_more:
                        unfinished.append((project_id, delete))
            total += await self._in_turn(unfinished)
        return total

    async def _in_turn(self, unfinished: list[tuple[str, _Delete]]) -> int:
        total = 0
        while unfinished:
            turns, unfinished = unfinished, []
            for project_id, delete in turns:
                count, has_more = await self._batches(project_id, delete)
                total += count
                if has_more:
                    unfinished.append((project_id, delete))
        return total

    async def _event_days(self, project_id: str) -> float:
        """Returns the days for which events and approvals of a project are kept; 0 means forever.

        They contain the text of messages, so they are kept no longer than the messages.
        """
        try:
            limits = (self._terms.event_days, await self._message_days(project_id))
        except StrataError as error:
            _log.warning("message retention not read", error=repr(error))
            return self._terms.event_days
        return min((days for days in limits if days), default=0.0)

    async def drop_backlogs(self) -> int:
        """Fails the oldest deliveries of projects with too many; returns their number."""
        total = 0
        async for project_id in self._projects(RetainedKind.BACKLOG):
            drop = partial(self._store.drop_backlog, project_id, most=self._terms.backlog)
            # The next poll drops the rest of a large backlog.
            dropped, _ = await self._batches(project_id, drop)
            if dropped:
                _log.warning("webhook deliveries dropped", project_id=project_id, count=dropped)
            total += dropped
        return total

    async def _projects(self, kind: RetainedKind) -> AsyncIterator[str]:
        after = ""
        while projects := await self._store.projects(kind, after, _PROJECTS):
            for project_id in projects:
                yield project_id
            after = projects[-1]

    async def _batches(self, project_id: str, delete: _Delete) -> tuple[int, bool]:
        """Deletes some batches; returns the number of rows, and whether there may be more.

        A failure ends the work for this project only.
        """
        total, limit, batches = 0, self._terms.batch, 0
        while batches < _BATCHES_IN_TURN:
            try:
                count = await delete(limit=limit)
            except DeadlineExceededError as error:
                # Some runs have many thousands of events.
                if limit > 1:
                    limit = max(1, limit // 4)
                    continue
                self._log_failure(project_id, error)
                return total, False
            except StrataError as error:
                self._log_failure(project_id, error)
                return total, False
            batches += 1
            total += count
            if count < limit:
                return total, False
            await asyncio.sleep(self._terms.pause_s)
        return total, True

    def _log_failure(self, project_id: str, error: StrataError) -> None:
        _log.warning("old rows not deleted", project_id=project_id, error=repr(error))
