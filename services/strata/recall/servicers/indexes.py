"""The index of messages, for operators."""

from __future__ import annotations

from typing import Any

from strata.api.recall.v1 import message_index_service_pb2 as pb
from strata.api.recall.v1 import message_index_service_pb2_grpc as pb_grpc
from strata.shared.vectors.reindex.index_admin import IndexAdmin

Context = Any


class MessageIndexServicer(pb_grpc.MessageIndexServiceServicer):
    """Shows and rebuilds indexes."""

    def __init__(self, admin: IndexAdmin) -> None:
        self._admin = admin

    async def GetIndex(self, request: pb.GetIndexRequest, context: Context) -> pb.GetIndexResponse:
        """Returns what serves and what waits."""
        return pb.GetIndexResponse(index=await self._admin.state(request.collection))

    async def StartReindex(
        self, request: pb.StartReindexRequest, context: Context
    ) -> pb.StartReindexResponse:
        """Begins to rebuild an index."""
        job = await self._admin.start(
            request.collection, request.embedding_model, request.request_id
        )
        return pb.StartReindexResponse(reindex=job)

    async def FinishReindex(
        self, request: pb.FinishReindexRequest, context: Context
    ) -> pb.FinishReindexResponse:
        """Drops what was replaced."""
        return pb.FinishReindexResponse(reindex=await self._admin.finish(request.collection))

    async def RollBackReindex(
        self, request: pb.RollBackReindexRequest, context: Context
    ) -> pb.RollBackReindexResponse:
        """Goes back to what was replaced."""
        return pb.RollBackReindexResponse(reindex=await self._admin.roll_back(request.collection))
