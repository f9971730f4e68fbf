"""The local mode of Qdrant's own client, as a second engine behind the index.

It searches in memory and in Python. Requests and replies are converted by Qdrant's own converters.
"""

from __future__ import annotations

from functools import singledispatchmethod
from typing import Any

from google.protobuf.message import Message
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc

from strata.shared.search.qdrant_wire import collections, points
from strata.shared.search.vectors.client import QdrantClient


class LocalModeClient(QdrantClient):
    """Answers the requests of the index without a server."""

    def __init__(self) -> None:
        self._engine = AsyncQdrantClient(":memory:")

    async def send(self, request: Message) -> Any:
        return await self._answer(request)

    async def close(self) -> None:
        await self._engine.close()

    @singledispatchmethod
    async def _answer(self, request: Message) -> Any:
        raise AssertionError(f"a request of a kind not known here: {type(request).__name__}")

    @_answer.register
    async def _(
        self, request: collections.CollectionExistsRequest
    ) -> collections.CollectionExistsResponse:
        exists = await self._engine.collection_exists(request.collection_name)
        return collections.CollectionExistsResponse(
            result=collections.CollectionExists(exists=exists)
        )

    @_answer.register
    async def _(self, request: collections.CreateCollection) -> None:
        sparse = request.sparse_vectors_config
        await self._engine.create_collection(
            request.collection_name,
            vectors_config=GrpcToRest.convert_vectors_config(request.vectors_config),
            sparse_vectors_config=GrpcToRest.convert_sparse_vector_config(sparse),
        )

    @_answer.register
    async def _(self, request: collections.DeleteCollection) -> None:
        await self._engine.delete_collection(request.collection_name)

    @_answer.register
    async def _(
        self, request: collections.GetCollectionInfoRequest
    ) -> collections.GetCollectionInfoResponse:
        info = await self._engine.get_collection(request.collection_name)
        return collections.GetCollectionInfoResponse(
            result=RestToGrpc.convert_collection_info(info)
        )

    @_answer.register
    async def _(
        self, request: collections.ListCollectionsRequest
    ) -> collections.ListCollectionsResponse:
        reply = await self._engine.get_collections()
        return collections.ListCollectionsResponse(
            collections=[
                collections.CollectionDescription(name=one.name) for one in reply.collections
            ]
        )

    @_answer.register
    async def _(self, request: collections.ListAliasesRequest) -> collections.ListAliasesResponse:
        reply = await self._engine.get_aliases()
        return collections.ListAliasesResponse(
            aliases=[RestToGrpc.convert_alias_description(alias) for alias in reply.aliases]
        )

    @_answer.register
    async def _(self, request: collections.ChangeAliases) -> None:
        operations = [GrpcToRest.convert_alias_operations(action) for action in request.actions]
        await self._engine.update_collection_aliases(operations)

    @_answer.register
    async def _(self, request: points.CreateFieldIndexCollection) -> None:
        """Does nothing: the local mode has no indexes."""

    @_answer.register
    async def _(self, request: points.UpsertPoints) -> None:
        stored = [GrpcToRest.convert_point_struct(point) for point in request.points]
        await self._engine.upsert(request.collection_name, stored)

    @_answer.register
    async def _(self, request: points.DeletePoints) -> None:
        conditions = GrpcToRest.convert_filter(request.points.filter)
        selector = models.FilterSelector(filter=conditions)
        await self._engine.delete(request.collection_name, selector)

    @_answer.register
    async def _(self, request: points.CountPoints) -> points.CountResponse:
        conditions = GrpcToRest.convert_filter(request.filter)
        reply = await self._engine.count(request.collection_name, conditions, exact=request.exact)
        return points.CountResponse(result=points.CountResult(count=reply.count))

    @_answer.register
    async def _(self, request: points.QueryBatchPoints) -> points.QueryBatchResponse:
        queries = [GrpcToRest.convert_query_points(query) for query in request.query_points]
        replies = await self._engine.query_batch_points(request.collection_name, queries)
        return points.QueryBatchResponse(
            result=[
                points.BatchResult(
                    result=[RestToGrpc.convert_scored_point(point) for point in reply.points]
                )
                for reply in replies
            ]
        )
