"""Starts the runs of schedules that are due.

The row of a schedule is the timer. Every gateway looks for rows that are due; the transaction that
takes a row records its tick, queues the run and sets the next time, all or nothing. So one gateway
acts on a tick, and one that dies meanwhile leaves it as due as before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from strata.gateway.schedules.domain import DueSchedule, ScheduleStore
from strata.shared.errors import ResourceExhaustedError, StrataError
from strata.shared.logs import get_logger

_BATCH = 50

_log = get_logger(__name__)


class ScheduleRunner:
    """Starts runs at their time.

    Args:
        store: The schedules.
        on_started: Called after a run was queued; looks for runs that may start.
        poll_s: Pause between two looks, in seconds.
    """

    def __init__(
        self, store: ScheduleStore, on_started: Callable[[], None], *, poll_s: float
    ) -> None:
        self._store = store
        self._on_started = on_started
        self._poll_s = poll_s

    async def keep_starting(self) -> None:
        """Looks for ever."""
        while True:
            try:
                await self.start_due()
            except StrataError as error:
                _log.warning("no look at schedules", error=repr(error))
            # So that gateways do not move in step.
            await asyncio.sleep(self._poll_s * random.uniform(0.8, 1.2))  # noqa: S311

    async def start_due(self) -> int:
        """Acts on what is due now; returns how many runs this gateway has queued."""
        count, after = 0, None
        full: set[str] = set()
        while due := await self._store.due(after, _BATCH):
            for schedule in due:
                if schedule.project_id in full:
                    continue
                try:
                    count += await self._fire(schedule)
                except ResourceExhaustedError:
                    # Its ticks stay due until the project has less open runs.
                    full.add(schedule.project_id)
            after = due[-1]
        if count:
            self._on_started()
        return count

    async def _fire(self, due: DueSchedule) -> bool:
        try:
            return await self._store.fire(due.project_id, due.id) is not None
        except ResourceExhaustedError:
            raise
        except Exception as error:  # noqa: BLE001
            # Whatever is wrong with one schedule: the others do not wait for it.
            known = isinstance(error, StrataError)
            _log.warning(
                "schedule not acted on", schedule_id=due.id, error=repr(error), exc_info=not known
            )
            return False
