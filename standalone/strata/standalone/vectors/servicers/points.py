"""`qdrant.Points`: storing, reading and searching points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import qdrant_edge as edge

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.convert_filters import filter_of, optional_filter
from strata.standalone.vectors.convert_points import (
    point,
    point_id,
    point_id_message,
    put_scored,
    retrieved_points,
)
from strata.standalone.vectors.convert_queries import scroll_request, with_payload, with_vectors
from strata.standalone.vectors.convert_schema import field_index
from strata.standalone.vectors.errors import BadRequestError
from strata.standalone.vectors.filter_rewriter import FilterRewriter
from strata.standalone.vectors.post_filter import search
from strata.standalone.vectors.servicers.base import Context, EngineServicer, complete

_UPDATE_MODES = {
    wire.points.UpdateMode.Upsert: edge.UpdateMode.Upsert,
    wire.points.UpdateMode.InsertOnly: edge.UpdateMode.InsertOnly,
    wire.points.UpdateMode.UpdateOnly: edge.UpdateMode.UpdateOnly,
}


def _selected(
    selector: wire.points.PointsSelector,
    by_ids: Callable[[list[Any]], edge.UpdateOperation],
    by_filter: Callable[[edge.Filter], edge.UpdateOperation],
) -> list[edge.UpdateOperation]:
    match selector.WhichOneof("points_selector_one_of"):
        case "points":
            return [by_ids([point_id(item) for item in selector.points.ids])]
        case "filter":
            return [by_filter(filter_of(selector.filter))]
        case _:
            raise BadRequestError("no points are selected")


@complete
class PointsServicer(EngineServicer, wire.points_service.PointsServicer):
    """`qdrant.Points`: storing, reading and searching points."""

    async def Upsert(self, request: wire.points.UpsertPoints, context: Context) -> Any:
        """Stores points, and replaces those with the same ids."""

        def build() -> list[edge.UpdateOperation]:
            return [
                edge.UpdateOperation.upsert_points(
                    [point(item) for item in request.points],
                    optional_filter(request, "update_filter"),
                    _UPDATE_MODES[request.update_mode],
                )
            ]

        return await self.write(request.collection_name, build)

    async def Delete(self, request: wire.points.DeletePoints, context: Context) -> Any:
        """Deletes points by id or filter."""
        make = edge.UpdateOperation
        return await self.write(
            request.collection_name,
            lambda: _selected(request.points, make.delete_points, make.delete_points_by_filter),
        )

    async def CreateFieldIndex(
        self, request: wire.points.CreateFieldIndexCollection, context: Context
    ) -> Any:
        """Indexes a payload field, or changes its index."""

        def build() -> list[edge.UpdateOperation]:
            schema = field_index(request)
            return [edge.UpdateOperation.create_field_index(request.field_name, schema)]

        return await self.write(request.collection_name, build)

    async def Get(self, request: wire.points.GetPoints, context: Context) -> Any:
        """Reads points by id."""

        def work(shard: edge.EdgeShard) -> list[wire.points.RetrievedPoint]:
            ids: list[edge.PointId] = [point_id(item) for item in request.ids]
            return retrieved_points(
                shard.retrieve(ids, with_payload(request), with_vectors(request))
            )

        points, seconds = await self.read(request.collection_name, work)
        return wire.points.GetResponse(result=points, time=seconds)

    async def Query(self, request: wire.points.QueryPoints, context: Context) -> Any:
        """Runs one query."""

        def work(shard: edge.EdgeShard, rewriter: FilterRewriter) -> wire.points.QueryResponse:
            response = wire.points.QueryResponse()
            [hits] = search(shard, rewriter, [request])
            put_scored(response.result, hits)
            return response

        answer, seconds = await self.search(request.collection_name, work)
        answer.time = seconds
        return answer

    async def QueryBatch(self, request: wire.points.QueryBatchPoints, context: Context) -> Any:
        """Runs several queries in one pass."""

        def work(shard: edge.EdgeShard, rewriter: FilterRewriter) -> wire.points.QueryBatchResponse:
            response = wire.points.QueryBatchResponse()
            for hits in search(shard, rewriter, request.query_points):
                put_scored(response.result.add().result, hits)
            return response

        answer, seconds = await self.search(request.collection_name, work)
        answer.time = seconds
        return answer

    async def Scroll(self, request: wire.points.ScrollPoints, context: Context) -> Any:
        """Reads points page by page."""

        def work(shard: edge.EdgeShard) -> wire.points.ScrollResponse:
            records, following = shard.scroll(scroll_request(request))
            return wire.points.ScrollResponse(
                result=retrieved_points(records),
                next_page_offset=None if following is None else point_id_message(following),
            )

        response, seconds = await self.read(request.collection_name, work)
        response.time = seconds
        return response

    async def Count(self, request: wire.points.CountPoints, context: Context) -> Any:
        """Counts points."""

        def work(shard: edge.EdgeShard) -> int:
            exact = request.exact if request.HasField("exact") else True
            return shard.count(edge.CountRequest(exact, optional_filter(request)))

        count, seconds = await self.read(request.collection_name, work)
        return wire.points.CountResponse(result=wire.points.CountResult(count=count), time=seconds)
