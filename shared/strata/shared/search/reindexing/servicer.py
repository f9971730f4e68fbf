"""Serves the state and rebuilds of indexes to operators."""

from __future__ import annotations

from typing import Any

from strata.api.common.v1 import search_pb2 as pb
from strata.shared.search.reindexing.index_admin import IndexAdmin

Context = Any


class IndexServicer:
    """The index service of a service; its generated base class gives it the name on the wire.

    Args:
        admin: The operations on the indexes.
    """

    def __init__(self, admin: IndexAdmin) -> None:
        self._admin = admin

    async def GetIndex(self, request: pb.GetIndexRequest, context: Context) -> pb.GetIndexResponse:
        """Returns the serving generation, its lag and a running rebuild."""
        self._admin.check_partition(request.partition)
        return pb.GetIndexResponse(index=await self._admin.state(request.collection))

    async def StartReindex(
        self, request: pb.StartReindexRequest, context: Context
    ) -> pb.StartReindexResponse:
        """Starts the rebuild of an index."""
        self._admin.check_partition(request.partition)
        job = await self._admin.start(
            request.collection, request.embedding_model, request.request_id
        )
        return pb.StartReindexResponse(reindex=job)

    async def FinishReindex(
        self, request: pb.FinishReindexRequest, context: Context
    ) -> pb.FinishReindexResponse:
        """Deletes the replaced generation."""
        self._admin.check_partition(request.partition)
        return pb.FinishReindexResponse(reindex=await self._admin.finish(request.collection))

    async def RollBackReindex(
        self, request: pb.RollBackReindexRequest, context: Context
    ) -> pb.RollBackReindexResponse:
        """Switches back to the replaced generation."""
        self._admin.check_partition(request.partition)
        return pb.RollBackReindexResponse(reindex=await self._admin.roll_back(request.collection))
