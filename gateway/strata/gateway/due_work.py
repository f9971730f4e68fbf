"""Finds work of all projects that is due at a time, or that another gateway has left.

No process is woken for it. Each gateway polls for all kinds with one statement, and wakes the parts
that have work; they claim it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from strata.gateway.creations.store import ANY_CREATION_DUE
from strata.gateway.deletions.store import ANY_DELETION_DUE
from strata.gateway.runs.store.approvals import ANY_APPROVAL_DUE
from strata.gateway.runs.store.claims import ANY_RUN_DUE
from strata.gateway.runs.store.open_ingestions import ANY_INGESTION_DUE
from strata.gateway.schedules.store import ANY_SCHEDULE_DUE
from strata.gateway.webhooks.store import ANY_DELIVERY_DUE
from strata.shared.db import Database
from strata.shared.polling import keep_polling
from strata.shared.waiting_work import WaitingWork


class DueKind(StrEnum):
    """A kind of work.

    Runs to claim, default decisions of approvals, ticks of schedules, deliveries of webhooks,
    interrupted creations and deletions of agents, and interrupted ingestions of files.
    """

    RUNS = "runs"
    APPROVALS = "approvals"
    SCHEDULES = "schedules"
    DELIVERIES = "deliveries"
    CREATIONS = "creations"
    DELETIONS = "deletions"
    INGESTIONS = "ingestions"


ANY_DUE: Mapping[DueKind, str] = {
    DueKind.RUNS: ANY_RUN_DUE,
    DueKind.APPROVALS: ANY_APPROVAL_DUE,
    DueKind.SCHEDULES: ANY_SCHEDULE_DUE,
    DueKind.DELIVERIES: ANY_DELIVERY_DUE,
    DueKind.CREATIONS: ANY_CREATION_DUE,
    DueKind.DELETIONS: ANY_DELETION_DUE,
    DueKind.INGESTIONS: ANY_INGESTION_DUE,
}
"""The SQL expression of each kind: whether there is such work."""


class DueWork:
    """Wakes the parts of this gateway that have work.

    Args:
        worker: Connects with the worker role, which sees the queues of all projects.
        wakes: For each kind, what wakes its part.
        poll_s: Mean seconds between two polls.
    """

    def __init__(
        self, worker: Database, wakes: Mapping[DueKind, Callable[[], None]], *, poll_s: float
    ) -> None:
        self._waiting_work = WaitingWork(worker, ANY_DUE)
        self._wakes = wakes
        self._poll_s = poll_s

    async def keep_looking(self) -> None:
        """Polls until it is cancelled."""
        await keep_polling(self.look, self._poll_s, "due work not polled")

    async def look(self) -> None:
        """Polls once.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        for kind in await self._waiting_work.find():
            self._wakes[kind]()
