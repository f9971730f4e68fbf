"""UnfinishedAgentService: removes the rest of agents whose creation or deletion was interrupted."""

from __future__ import annotations

from typing import Any

from strata.agent_loop.agents.lifecycle import AgentLifecycle
from strata.api.agent_loop.v1 import unfinished_agent_service_pb2 as pb
from strata.api.agent_loop.v1 import unfinished_agent_service_pb2_grpc as pb_grpc

Context = Any


class UnfinishedAgentServicer(pb_grpc.UnfinishedAgentServiceServicer):
    """Removes unfinished agents.

    Args:
        lifecycle: Deletes agents.
    """

    def __init__(self, lifecycle: AgentLifecycle) -> None:
        self._lifecycle = lifecycle

    async def RemoveUnfinishedAgents(
        self, request: pb.RemoveUnfinishedAgentsRequest, context: Context
    ) -> pb.RemoveUnfinishedAgentsResponse:
        """Removes the unfinished agents of the project."""
        await self._lifecycle.remove_unfinished()
        return pb.RemoveUnfinishedAgentsResponse()
