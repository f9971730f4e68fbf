"""The client of archival memory."""

from __future__ import annotations

import grpc.aio

from strata.agent_loop.domain.ports import (
    ArchivalStats,
)
from strata.api.archival.v1 import agent_archive_service_pb2 as archive_pb
from strata.api.archival.v1 import agent_archive_service_pb2_grpc as archive_grpc
from strata.shared.convert.messages import labels_from_proto


class ArchivalClient:
    """Implements `domain.ports.Archival` and `agents.ports.LifecycleArchival`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = archive_grpc.AgentArchiveServiceStub(channel)

    async def stats(self, agent_id: str) -> ArchivalStats:
        """Returns the counts of the agent's passages for the metadata."""
        request = archive_pb.GetAgentStatsRequest(agent_id=agent_id)
        response = await self._stub.GetAgentStats(request)
        taint = {
            tainted_tag.tag: labels_from_proto(tainted_tag.taint)
            for tainted_tag in response.tainted_tags
        }
        return ArchivalStats(
            response.passage_count, tuple(response.tags), response.more_tags, taint
        )

    async def prepare(self, agent_id: str) -> None:
        """Registers an agent; repeating it succeeds."""
        await self._stub.PrepareAgent(archive_pb.PrepareAgentRequest(agent_id=agent_id))

    async def release(self, agent_id: str) -> None:
        """Detaches all archives from an agent and deletes its own."""
        await self._stub.ReleaseAgent(archive_pb.ReleaseAgentRequest(agent_id=agent_id))
