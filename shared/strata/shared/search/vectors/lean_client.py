"""A client of the engine that creates no model object per point that is stored or found."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from qdrant_client import AsyncQdrantClient, grpc, models
from qdrant_client.conversions.conversion import RestToGrpc, json_to_value


class LeanPoint(NamedTuple):
    """A point in a result: its score and the requested fields."""

    score: float
    payload: dict[str, Any]


class LeanResponse(NamedTuple):
    """The points that match one request of a batch, best first."""

    points: list[LeanPoint]


class LeanQdrantClient(AsyncQdrantClient):
    """Stores and searches points with less processor time; other methods are inherited.

    A search for messages retrieves some hundred chunks. The inherited method makes a pydantic
    object of each, which takes longer than the search itself. When points are stored, the
    inherited method looks for texts to embed and copies the points between messages.
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
        """Returns a `LeanResponse` per request, with the scalar fields of the payloads only."""
        batch = _batch(collection_name, requests)
        if consistency is not None:
            batch.read_consistency.CopyFrom(consistency)
        if timeout is not None:
            batch.timeout = timeout
        return await self._responses(batch, timeout)

    def prepared(
        self, collection_name: str, requests: Sequence[models.QueryRequest]
    ) -> Callable[[], Awaitable[list[LeanResponse]]]:
        """Builds the message of `query_batch_points` now; returns a function that sends it."""
        batch = _batch(collection_name, requests)
        return lambda: self._responses(batch)

    async def _responses(self, batch: Any, timeout: int | None = None) -> list[LeanResponse]:  # noqa: ASYNC109 - passed on
        reply = await self.grpc_points.QueryBatch(batch, timeout=timeout)
        return [
            LeanResponse(
                [LeanPoint(point.score, _fields(point.payload)) for point in result.result]
            )
            for result in reply.result
        ]


def _batch(collection_name: str, requests: Sequence[models.QueryRequest]) -> Any:
    batch = grpc.QueryBatchPoints(collection_name=collection_name)
    filters: dict[int, grpc.Filter] = {}
    for request in requests:
        _fill_query(batch.query_points.add(), request, collection_name, filters)
    return batch


def _fill_query(
    message: Any,
    request: models.QueryRequest,
    collection_name: str,
    filters: dict[int, grpc.Filter],
) -> None:
    """Fills in one request of a batch; the arms of a search share one filter object."""
    if not _is_plain(request):
        message.CopyFrom(RestToGrpc.convert_query_request(request, collection_name))
        return
    message.collection_name = collection_name
    nearest = message.query.nearest
    vector: Any = request.query
    if isinstance(vector, models.SparseVector):
        nearest.sparse.indices.extend(vector.indices)
        nearest.sparse.values.extend(vector.values)
    else:
        nearest.dense.data.extend(vector)
    if request.using is not None:
        message.using = request.using
    if request.limit is not None:
        message.limit = request.limit
    if request.filter is not None:
        known = filters.get(id(request.filter))
        if known is None:
            known = filters[id(request.filter)] = RestToGrpc.convert_filter(request.filter)
        message.filter.CopyFrom(known)
    if request.params is not None:
        message.params.CopyFrom(RestToGrpc.convert_search_params(request.params))
    if request.with_payload is not None:
        wanted = RestToGrpc.convert_with_payload_interface(request.with_payload)
        message.with_payload.CopyFrom(wanted)


def _is_plain(request: models.QueryRequest) -> bool:
    vector = request.query
    nearest = isinstance(vector, models.SparseVector) or (
        isinstance(vector, list) and bool(vector) and isinstance(vector[0], float)
    )
    return nearest and request.model_fields_set <= _PLAIN


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
    fields: dict[str, Any] = {}
    for name, value in payload.items():
        text = value.string_value
        if text:  # nearly all are
            fields[name] = text
        elif (kind := value.WhichOneof("kind")) in _SCALARS:
            fields[name] = getattr(value, kind)
    return fields


_PLAIN = frozenset({"query", "using", "limit", "filter", "params", "with_payload"})
_SCALARS = frozenset({"string_value", "integer_value", "double_value", "bool_value"})
