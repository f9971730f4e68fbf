"""The engine's client, without a model object for every point that is stored or found."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from qdrant_client import AsyncQdrantClient, grpc, models
from qdrant_client.conversions.conversion import RestToGrpc, json_to_value


class LeanPoint(NamedTuple):
    """A point that was found: its score, and the fields that were asked for."""

    score: float
    payload: dict[str, Any]


class LeanResponse(NamedTuple):
    """What one of the requests of a batch found, best first."""

    points: list[LeanPoint]


class LeanQdrantClient(AsyncQdrantClient):
    """Stores and searches with a fraction of the processor time per point; all else is inherited.

    A search for messages looks at some hundred chunks. The inherited method makes a pydantic
    object of each, which takes longer than the search itself. And what is stored is looked
    through for texts to embed, and copied from message to message.
    """

    async def upsert(
        self, collection_name: str, points: Any, wait: bool = True, *more: Any, **options: Any
    ) -> Any:
        """Stores points with named vectors, dense or sparse."""
        if more or options:
            return await super().upsert(collection_name, points, wait, *more, **options)
        request = grpc.UpsertPoints(collection_name=collection_name, wait=wait)
        for point in points:
            _fill(request.points.add(), point)
        return (await self.grpc_points.Upsert(request)).result

    async def query_batch_points(
        self,
        collection_name: str,
        requests: Sequence[Any],
        consistency: Any = None,
        timeout: int | None = None,  # noqa: ASYNC109 - the signature is inherited
        **kwargs: Any,
    ) -> Any:
        """Returns a `LeanResponse` per request; only scalar fields of a payload are read."""
        reply = await self.grpc_points.QueryBatch(
            grpc.QueryBatchPoints(
                collection_name=collection_name,
                query_points=[
                    RestToGrpc.convert_query_request(each, collection_name) for each in requests
                ],
                read_consistency=consistency,
                timeout=timeout,
            ),
            timeout=timeout,
        )
        return [
            LeanResponse([LeanPoint(point.score, _fields(point.payload)) for point in each.result])
            for each in reply.result
        ]


def _fill(message: Any, point: models.PointStruct) -> None:
    if isinstance(point.id, int):
        message.id.num = point.id
    else:
        message.id.uuid = str(point.id)
    vectors: Any = point.vector
    for name, vector in vectors.items():
        target = message.vectors.vectors.vectors[name]
        if isinstance(vector, models.SparseVector):
            target.sparse.indices.extend(vector.indices)
            target.sparse.values.extend(vector.values)
        else:
            target.dense.data.extend(vector)
    for name, value in (point.payload or {}).items():
        message.payload[name].CopyFrom(json_to_value(value))


def _fields(payload: Any) -> dict[str, Any]:
    fields = {}
    for name, value in payload.items():
        kind = value.WhichOneof("kind")
        if kind == "string_value":  # nearly all are
            fields[name] = value.string_value
        elif kind in _SCALARS:
            fields[name] = getattr(value, kind)
    return fields


_SCALARS = frozenset({"string_value", "integer_value", "double_value", "bool_value"})
