"""Answers requests for approval that their deadline approves.

Every gateway polls for open requests with a passed deadline (`strata.gateway.due_work`). The
statement that accepts the answering run closes the request, so only one gateway answers it. If that
gateway dies afterwards, another one takes over the run, as with any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from strata.gateway.runs.convert.approvals import default_run
from strata.gateway.runs.domain.approvals import DueApproval
from strata.gateway.runs.domain.runs import Accepted, NewRun, RunStore
from strata.protocol.errors import FailedPreconditionError, StrataError
from strata.shared.logs import get_logger
from strata.shared.polling import keep_working

_BATCH = 50

_log = get_logger(__name__)


class DefaultAnswers:
    """Answers requests whose deadline approves them.

    Args:
        store: Requests and runs.
        accept: Stores and starts a run, see `Dispatcher.accept`.
    """

    def __init__(self, store: RunStore, accept: Callable[[NewRun], Awaitable[Accepted]]) -> None:
        self._store = store
        self._accept = accept
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Signals that requests are due."""
        self._wake.set()

    async def keep_answering(self) -> None:
        """Answers due requests each time it is woken, until it is cancelled."""
        await keep_working(self.answer_due, self._wake, "deadlines of approvals not checked")

    async def answer_due(self) -> int:
        """Answers requests that are due now; returns how many this gateway has answered."""
        answered, after = 0, None
        while due := await self._store.due_approvals(after, _BATCH):
            for request in due:
                answered += await self._answer(request)
            after = due[-1]
        return answered

    async def _answer(self, due: DueApproval) -> bool:
        store = self._store
        try:
            approval = await store.approval(due.project_id, due.id)
            principal, max_steps = await store.asked_by(due.project_id, approval.run_id)
            await self._accept(default_run(approval, principal, max_steps))
        except FailedPreconditionError:
            # Another gateway or a client was faster.
            return False
        except Exception as error:  # noqa: BLE001
            # It stays due. Continue with the requests of other projects.
            is_expected = isinstance(error, StrataError)
            _log.warning(
                "expired approval not answered",
                approval_id=due.id,
                error=repr(error),
                exc_info=not is_expected,
            )
            return False
        return True
