"""Rolls back creations of agents that were cut off between services and are not repeated.

An agent in creation is in no list, so clients cannot delete it with its blocks and its archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc.aio

from strata.api.agent_loop.v1 import unfinished_agent_service_pb2 as pb
from strata.api.agent_loop.v1 import unfinished_agent_service_pb2_grpc as pb_grpc
from strata.gateway.creations.store import DueCreations, PostgresAgentCreations
from strata.gateway.project_callers import ProjectCallers
from strata.protocol.errors import InvalidArgumentError, StrataError
from strata.shared.bounded_tasks import BoundedTasks
from strata.shared.context import RequestContext, current_project, use
from strata.shared.logs import get_logger
from strata.shared.polling import keep_working
from strata.shared.scopes import Scope

_PRINCIPAL = "creation"
_SCOPES = frozenset({Scope.READ.value, Scope.WRITE.value})
_MOST_AT_ONCE = 4
_TIMEOUT_S = 120.0
_LEASE_S = 180.0

_log = get_logger(__name__)


class AgentCreations:
    """Records the creations of agents, and has those removed that did not end.

    Args:
        store: The creations.
        agent_loop: Channel to the agent loop.
        callers: Makes callers for the roll-back.
    """

    def __init__(
        self, store: PostgresAgentCreations, agent_loop: grpc.aio.Channel, callers: ProjectCallers
    ) -> None:
        self._store = store
        self._unfinished = pb_grpc.UnfinishedAgentServiceStub(agent_loop)
        self._callers = callers
        self._wake = asyncio.Event()
        self._tasks = BoundedTasks[str](_MOST_AT_ONCE, self.wake)

    def wake(self) -> None:
        """Signals that creations are due."""
        self._wake.set()

    async def keep_rolling_back(self) -> None:
        """Rolls back due creations each time it is woken, until it is cancelled."""
        try:
            await keep_working(self._start_due, self._wake, "creations of agents not rolled back")
        finally:
            self._tasks.cancel()

    @asynccontextmanager
    async def recorded(self, _request: bytes) -> AsyncIterator[None]:
        """Records the creation that a forwarded call makes, until the call has succeeded.

        A failed call may have left an agent in creation, which only a repetition with the same
        request id continues.

        Raises:
            UnavailableError: The creation could not be recorded.
        """
        project_id = current_project()
        creation_id = await self._store.begin(project_id)
        try:
            yield
        except InvalidArgumentError:
            await asyncio.shield(self._end(project_id, creation_id))
            raise
        await asyncio.shield(self._end(project_id, creation_id))

    async def _end(self, project_id: str, creation_id: str) -> None:
        try:
            await self._store.end(project_id, creation_id)
        except StrataError as error:
            # The roll-back will find nothing.
            _log.warning("record of an agent creation not deleted", error=repr(error))

    async def _start_due(self) -> None:
        if self._tasks.free:
            for due in await self._store.claim(self._tasks.free, _LEASE_S):
                self._tasks.start(due.project_id, partial(self._roll_back, due))

    async def _roll_back(self, due: DueCreations) -> None:
        try:
            caller = await self._callers.of(due.project_id, _PRINCIPAL, _SCOPES)
            if caller is not None:
                with use(RequestContext(caller=caller)):
                    request = pb.RemoveUnfinishedAgentsRequest()
                    await self._unfinished.RemoveUnfinishedAgents(request, timeout=_TIMEOUT_S)
            await self._store.end_claimed(due)
        except StrataError as error:
            # It is due again after the lease.
            _log.warning(
                "creations not rolled back yet", project_id=due.project_id, error=repr(error)
            )
