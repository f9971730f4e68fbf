"""Finishes deletions of agents that a process, or a service that was away, has left half done.

The agent loop hides the agent first and then deletes it from all services; afterwards the gateway
ends its runs, schedules and document agents, and erases the events of its runs, and of the runs of
its memory agents. A hidden agent is in no list, so clients cannot see that its deletion was
interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import grpc.aio

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.gateway.deletions.store import PostgresAgentDeletions
from strata.gateway.forwarded_requests import agent_id_in
from strata.gateway.project_callers import ProjectCallers
from strata.protocol.errors import DeadlineExceededError, NotFoundError, StrataError
from strata.shared.bounded_tasks import BoundedTasks
from strata.shared.context import RequestContext, current_project, use
from strata.shared.logs import get_logger
from strata.shared.polling import keep_working
from strata.shared.scopes import Scope

_PRINCIPAL = "deletion"
_SCOPES = frozenset({Scope.READ.value, Scope.WRITE.value})
_MOST_AT_ONCE = 8
# An agent may have a million messages.
_TIMEOUT_S = 600.0
_LEASE_S = 660.0
# Runs whose events are erased in one transaction.
_BATCH = 200
_OPEN_RUNS_AGAIN_AFTER_S = 10.0

_log = get_logger(__name__)


class AgentDeletions:
    """Records the deletions of agents, and repeats those that have not been finished.

    Args:
        store: The deletions.
        agent_loop: Channel to the agent loop.
        callers: Makes callers for deletions that are repeated.
        after: Awaited with the id of an agent that was deleted; ends what the gateway has of it.
            It can be repeated, and raises a `StrataError` if it could not do all.
    """

    def __init__(
        self,
        store: PostgresAgentDeletions,
        agent_loop: grpc.aio.Channel,
        callers: ProjectCallers,
        after: Callable[[str], Awaitable[None]],
    ) -> None:
        self._store = store
        self._agents = agent_grpc.AgentServiceStub(agent_loop)
        self._callers = callers
        self._after = after
        self._wake = asyncio.Event()
        self._tasks = BoundedTasks[tuple[str, str]](_MOST_AT_ONCE, self.wake)

    def wake(self) -> None:
        """Signals that deletions are due."""
        self._wake.set()

    async def keep_finishing(self) -> None:
        """Finishes due deletions each time it is woken, until it is cancelled."""
        try:
            await keep_working(self._start_due, self._wake, "deletions of agents not finished")
        finally:
            self._tasks.cancel()

    @asynccontextmanager
    async def recorded(self, request: bytes) -> AsyncIterator[None]:
        """Records the deletion that a forwarded call makes, and finishes it.

        Args:
            request: The DeleteAgentRequest. The agent loop refuses a malformed one.

        Raises:
            UnavailableError: The deletion could not be recorded.
        """
        agent_id = agent_id_in(agent_pb.DeleteAgentRequest, request)
        if not agent_id:
            yield
            return
        project_id = current_project()
        await self._store.begin(project_id, agent_id)
        try:
            yield
        except NotFoundError:
            # The answer of an earlier call, which has deleted it, may have been lost.
            await asyncio.shield(self._finish(project_id, agent_id, may_wait=True))
            raise
        # Even if the caller leaves meanwhile.
        await asyncio.shield(self._finish(project_id, agent_id, may_wait=True))

    async def _start_due(self) -> None:
        if self._tasks.free:
            for project_id, agent_id in await self._store.claim(self._tasks.free, _LEASE_S):
                self._tasks.start(
                    (project_id, agent_id), partial(self._repeat, project_id, agent_id)
                )

    async def _repeat(self, project_id: str, agent_id: str) -> None:
        try:
            caller = await self._callers.of(project_id, _PRINCIPAL, _SCOPES)
            if caller is None:
                await self._store.end(project_id, agent_id)
                return
            with use(RequestContext(caller=caller)):
                if await self._is_visible(agent_id):
                    # The call that was recorded was refused, or has not reached the agent loop.
                    await self._store.end(project_id, agent_id)
                    return
                with suppress(NotFoundError):
                    request = agent_pb.DeleteAgentRequest(agent_id=agent_id)
                    await self._agents.DeleteAgent(request, timeout=_TIMEOUT_S)
                await self._finish(project_id, agent_id)
        except StrataError as error:
            await self._note_failure(project_id, agent_id, error)

    async def _is_visible(self, agent_id: str) -> bool:
        try:
            await self._agents.GetAgent(agent_pb.GetAgentRequest(agent_id=agent_id))
        except NotFoundError:
            return False
        return True

    async def _finish(self, project_id: str, agent_id: str, *, may_wait: bool = False) -> None:
        """Ends and erases what the gateway has of a deleted agent.

        Args:
            project_id: The project.
            agent_id: The agent.
            may_wait: Whether a client waits, so that the rest of many runs is left to the worker.
        """
        try:
            # First, since the marks that name them are deleted below.
            await self._store.begin_readers(project_id, agent_id)
            await self._after(agent_id)
            left_s = await self._erase(project_id, agent_id, most=1 if may_wait else None)
            if left_s is None:
                await self._store.end(project_id, agent_id)
            else:
                await self._store.postpone(project_id, agent_id, left_s)
        except StrataError as error:
            await self._note_failure(project_id, agent_id, error)

    async def _erase(self, project_id: str, agent_id: str, most: int | None) -> float | None:
        """Erases events of runs, and requests for approval; returns in how many seconds to go on.

        Args:
            project_id: The project.
            agent_id: The agent.
            most: Maximum number of batches.

        Returns:
            None if nothing is left.
        """
        after, has_open, limit, count = "", False, _BATCH, 0
        while True:
            try:
                batch = await self._store.erase_events(project_id, agent_id, after, limit)
            except DeadlineExceededError:
                # Some runs have many thousands of events.
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            has_open |= batch.has_open
            if batch.size < limit:
                break
            after, count = batch.last_id, count + 1
            if count == most:
                return 0.0
        while await self._store.delete_approvals(project_id, agent_id, _BATCH) == _BATCH:
            pass
        return _OPEN_RUNS_AGAIN_AFTER_S if has_open else None

    async def _note_failure(self, project_id: str, agent_id: str, error: StrataError) -> None:
        _log.warning("deletion of an agent not finished yet", agent_id=agent_id, error=repr(error))
        # If this fails as well, it is due after the lease.
        with suppress(StrataError):
            await self._store.postpone(project_id, agent_id)
