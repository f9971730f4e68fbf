"""Requests for approval that nobody answered, and that their deadline approves.

The request itself is the timer: a row that is due. Every gateway looks for such rows; the statement
that accepts the answering run uses the request up, so that one of them gives the answer. A gateway
that dies behind that leaves a run like any other, which another one takes over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from strata.gateway.runs.approvals import DueApproval
from strata.gateway.runs.convert_approvals import default_run
from strata.gateway.runs.domain import Accepted, NewRun, RunStore
from strata.shared.errors import FailedPreconditionError, StrataError
from strata.shared.logs import get_logger

_BATCH = 50

_log = get_logger(__name__)


class DefaultAnswers:
    """Gives the answers of deadlines that approve.

    Args:
        store: Requests and runs.
        accept: Stores a run and begins to carry it out, see `Dispatcher.accept`.
        poll_s: Pause between two looks, in seconds.
    """

    def __init__(
        self, store: RunStore, accept: Callable[[NewRun], Awaitable[Accepted]], *, poll_s: float
    ) -> None:
        self._store = store
        self._accept = accept
        self._poll_s = poll_s

    async def keep_giving(self) -> None:
        """Looks for ever."""
        while True:
            try:
                await self.give()
            except StrataError as error:
                _log.warning("no look at deadlines of approvals", error=repr(error))
            # So that gateways do not move in step.
            await asyncio.sleep(self._poll_s * random.uniform(0.8, 1.2))  # noqa: S311

    async def give(self) -> int:
        """Answers what is due now; returns how many requests this gateway has answered."""
        given, after = 0, None
        while due := await self._store.due_approvals(after, _BATCH):
            for each in due:
                given += await self._answer(each)
            after = due[-1]
        return given

    async def _answer(self, due: DueApproval) -> bool:
        store = self._store
        try:
            approval = await store.approval(due.project_id, due.id)
            principal, max_steps = await store.asked_by(due.project_id, approval.run_id)
            await self._accept(default_run(approval, principal, max_steps))
        except FailedPreconditionError:
            # Somebody was faster.
            return False
        except StrataError as error:
            # It stays due; the requests of other projects must not wait for it.
            _log.warning("deadline not acted on", approval_id=due.id, error=repr(error))
            return False
        return True
