"""Serves the state and rebuilds of the index of messages to operators."""

from __future__ import annotations

from typing import Any

from strata.api.recall.v1 import message_index_service_pb2 as pb
from strata.api.recall.v1 import message_index_service_pb2_grpc as pb_grpc
from strata.shared.search.reindexing.index_admin import IndexAdmin

Context = Any


class MessageIndexServicer(pb_grpc.MessageIndexServiceServicer):
    """Shows and rebuilds indexes."""

    def __init__(self, admin: IndexAdmin) -> None:
        self._admin = admin

    async def GetIndex(self, request: pb.GetIndexRequest, context: Context) -> pb.GetIndexResponse:
        """Returns the serving generation, its lag and a running rebuild."""
        return pb.GetIndexResponse(index=await self._admin.state(request.collection))

    async def StartReindex(
        self, request: pb.StartReindexRequest, context: Context
    ) -> pb.StartReindexResponse:
        """Starts the rebuild of an index."""
        job = await self._admin.start(
            request.collection, request.embedding_model, request.request_id
        )
        return pb.StartReindexResponse(reindex=job)

    async def FinishReindex(
        self, request: pb.FinishReindexRequest, context: Context
    ) -> pb.FinishReindexResponse:
        """Deletes the replaced generation."""
        return pb.FinishReindexResponse(reindex=await self._admin.finish(request.collection))

    async def RollBackReindex(
        self, request: pb.RollBackReindexRequest, context: Context
    ) -> pb.RollBackReindexResponse:
        """Switches back to the replaced generation."""
        return pb.RollBackReindexResponse(reindex=await self._admin.roll_back(request.collection))
