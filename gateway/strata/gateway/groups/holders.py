"""The member that holds the conversation of a swarm, which agent_loop stores."""

from __future__ import annotations

import grpc.aio

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.agent_loop.v1 import turn_service_pb2_grpc as turn_grpc
from strata.protocol.errors import NotFoundError


class SwarmHolders:
    """Reads and sets the holders of swarms in the calling project.

    A deleted group has no holder; its run is about to be cancelled.

    Args:
        channel: To agent_loop.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = turn_grpc.TurnServiceStub(channel)

    async def begin(self, group_id: str, run_id: str) -> str:
        """Returns the agent that holds the conversation when a run begins.

        Every call for a run returns the same agent until the next run begins.

        Returns:
            The agent; empty if the conversation was never handed over.
        """
        request = turn_pb.BeginGroupRunRequest(group_id=group_id, run_id=run_id)
        try:
            response = await self._stub.BeginGroupRun(request)
        except NotFoundError:
            return ""
        return str(response.holder_agent_id)

    async def hand_over(self, group_id: str, run_id: str, number: int, agent_id: str) -> None:
        """Stores a hand-over; repeating it changes nothing.

        Args:
            group_id: The group.
            run_id: The run.
            number: Number of the hand-over in the run, from 1.
            agent_id: The agent that holds the conversation from now on.
        """
        request = turn_pb.HandOverRequest(
            group_id=group_id, run_id=run_id, number=number, holder_agent_id=agent_id
        )
        try:
            await self._stub.HandOver(request)
        except NotFoundError:
            return
