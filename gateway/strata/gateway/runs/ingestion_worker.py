"""Repeats ingestions of files whose gateway died, or whose services were away.

Otherwise files would wait until the next run of a memory agent, or the next folder.
"""

from __future__ import annotations

import asyncio
from functools import partial

from strata.gateway.project_callers import ProjectCallers
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.runs import RunStore
from strata.gateway.runs.ingestion import DocumentIngestion
from strata.gateway.runs.store.open_ingestions import (
    IngestionPrincipal,
    OpenIngestion,
    PostgresOpenIngestions,
)
from strata.protocol.errors import StrataError
from strata.shared.bounded_tasks import BoundedTasks
from strata.shared.context import RequestContext, use
from strata.shared.logs import get_logger
from strata.shared.polling import keep_working

_MOST_AT_ONCE = 4
_LEASE_S = 120.0

_log = get_logger(__name__)


class IngestionWorker:
    """Repeats ingestions that were not done.

    Args:
        store: The open ingestions.
        runs: The runs that some of them follow, with whose scopes these act.
        ingestion: Ingests the files of an agent.
        callers: Makes callers for the calls to other services.
    """

    def __init__(
        self,
        store: PostgresOpenIngestions,
        runs: RunStore,
        ingestion: DocumentIngestion,
        callers: ProjectCallers,
    ) -> None:
        self._store = store
        self._runs = runs
        self._ingestion = ingestion
        self._callers = callers
        self._wake = asyncio.Event()
        self._tasks = BoundedTasks[tuple[str, str]](_MOST_AT_ONCE, self.wake)

    def wake(self) -> None:
        """Signals that ingestions are due."""
        self._wake.set()

    async def keep_repeating(self) -> None:
        """Repeats due ingestions each time it is woken, until it is cancelled."""
        try:
            await keep_working(self._start_due, self._wake, "ingestions of files not repeated")
        finally:
            self._tasks.cancel()

    async def _start_due(self) -> None:
        if self._tasks.free:
            for due in await self._store.claim(self._tasks.free, _LEASE_S):
                self._tasks.start((due.project_id, due.agent_id), partial(self._repeat, due))

    async def _repeat(self, due: OpenIngestion) -> None:
        try:
            principal: Principal | IngestionPrincipal
            if due.asked_by is None:
                principal, _ = await self._runs.asked_by(due.project_id, due.cause_id)
            else:
                principal = due.asked_by
            caller = await self._callers.of(due.project_id, principal.name, principal.scopes)
            if caller is None:
                await self._store.end(due)
                return
            with use(RequestContext(caller=caller)):
                await self._ingestion.finish(due)
        except StrataError as error:
            # It is due again after the lease.
            _log.warning("ingestion not repeated yet", agent_id=due.agent_id, error=repr(error))
