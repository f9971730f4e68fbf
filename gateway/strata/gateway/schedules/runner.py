"""Starts the runs of due schedules.

Every gateway polls for due schedules (`strata.gateway.due_work`). One transaction locks a schedule,
records its tick, queues the run and sets the next time. So exactly one gateway processes a tick,
and if that gateway dies meanwhile the tick stays due.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from strata.gateway.schedules.domain import DueSchedule, ScheduleStore
from strata.protocol.errors import ResourceExhaustedError, StrataError
from strata.shared.logs import get_logger
from strata.shared.polling import keep_working

_BATCH = 50
# Schedules that could not be processed in a pass; the next pass tries them again.
_MOST_PASSED_OVER = 1000

_log = get_logger(__name__)


class ScheduleRunner:
    """Starts runs at their scheduled time.

    Args:
        store: The schedules.
        on_started: Called after a run was queued, to look for runs that may start.
    """

    def __init__(self, store: ScheduleStore, on_started: Callable[[], None]) -> None:
        self._store = store
        self._on_started = on_started
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Signals that schedules are due."""
        self._wake.set()

    async def keep_starting(self) -> None:
        """Starts due runs each time it is woken, until it is cancelled."""
        await keep_working(self.start_due, self._wake, "due schedules not started")

    async def start_due(self) -> int:
        """Processes due schedules of all projects in turn; returns the number of runs queued here.

        After a standstill all schedules of an installation may be due at once.
        """
        started: Counter[str] = Counter()
        full: set[str] = set()
        passed_over: set[str] = set()
        while len(passed_over) < _MOST_PASSED_OVER and (
            due := await self._store.due(
                _BATCH, started=started, without=passed_over, without_projects=full
            )
        ):
            before = started.total()
            for schedule in due:
                if schedule.project_id in full:
                    continue
                try:
                    if await self._fire(schedule):
                        started[schedule.project_id] += 1
                    else:
                        passed_over.add(schedule.id)
                except ResourceExhaustedError:
                    # Its ticks stay due until the project has fewer open runs.
                    full.add(schedule.project_id)
            if started.total() > before:
                self._on_started()
        return started.total()

    async def _fire(self, due: DueSchedule) -> bool:
        try:
            return await self._store.fire(due.project_id, due.id) is not None
        except ResourceExhaustedError:
            raise
        except Exception as error:  # noqa: BLE001
            # A failure of one schedule must not stop the others.
            is_expected = isinstance(error, StrataError)
            _log.warning(
                "schedule not processed",
                schedule_id=due.id,
                error=repr(error),
                exc_info=not is_expected,
            )
            return False
