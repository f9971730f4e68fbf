"""Converts points, payloads and vectors between Qdrant's messages and the engine's objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import qdrant_edge as edge

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.errors import BadRequestError, UnsupportedError

PointId = int | UUID


def point_id(message: wire.common.PointId) -> PointId:
    """Returns the engine's id.

    Raises:
        BadRequestError: It is neither a number nor a UUID.
    """
    if message.WhichOneof("point_id_options") == "num":
        return int(message.num)
    try:
        return UUID(message.uuid)
    except ValueError:
        raise BadRequestError(f"unable to parse UUID: {message.uuid!r}") from None


def point_id_message(value: edge.PointId) -> wire.common.PointId:
    """Returns the message of an engine's id."""
    if isinstance(value, int):
        return wire.common.PointId(num=value)
    return wire.common.PointId(uuid=str(value))


def value(message: wire.json_values.Value) -> Any:
    """Returns a JSON value as Python's."""
    match message.WhichOneof("kind"):
        case "struct_value":
            return payload(message.struct_value.fields)
        case "list_value":
            return [value(item) for item in message.list_value.values]
        case None | "null_value":
            return None
        case kind:
            return getattr(message, kind)


def payload(fields: Mapping[str, wire.json_values.Value]) -> dict[str, Any]:
    """Returns a payload as a dict."""
    return {key: value(item) for key, item in fields.items()}


def value_message(item: Any) -> wire.json_values.Value:
    """Returns the message of a JSON value."""
    values = wire.json_values
    match item:
        case None:
            return values.Value(null_value=values.NullValue.NULL_VALUE)
        case bool():
            return values.Value(bool_value=item)
        case int():
            return values.Value(integer_value=item)
        case float():
            return values.Value(double_value=item)
        case str():
            return values.Value(string_value=item)
        case dict():
            return values.Value(struct_value=values.Struct(fields=payload_message(item)))
        case list() | tuple():
            members = [value_message(member) for member in item]
            return values.Value(list_value=values.ListValue(values=members))
    raise BadRequestError(f"a payload cannot hold a {type(item).__name__}")


def payload_message(
    fields: Mapping[str, Any] | None,
) -> dict[str, wire.json_values.Value]:
    """Returns the messages of a payload's fields."""
    return {key: value_message(item) for key, item in (fields or {}).items()}


def sparse_vector(indices: Sequence[int], values: Sequence[float]) -> edge.SparseVector:
    """Returns a sparse vector, with the checks of Qdrant that the engine lacks.

    Raises:
        BadRequestError: An index occurs twice, or indices and values differ in number.
    """
    if len(indices) != len(values) or len(set(indices)) != len(indices):
        raise BadRequestError("Validation error: sparse indices must be unique, one per value")
    return edge.SparseVector(list(indices), list(values))


def vector(message: wire.points.Vector) -> edge.NamedVector:
    """Returns one vector: dense, sparse or a list of dense ones.

    Raises:
        UnsupportedError: It would have to be inferred from a document, an image or an object.
    """
    match message.WhichOneof("vector"):
        case "dense":
            return list(message.dense.data)
        case "sparse":
            return sparse_vector(message.sparse.indices, message.sparse.values)
        case "multi_dense":
            return [list(row.data) for row in message.multi_dense.vectors]
        case None:
            return _flat_vector(message)
        case kind:
            raise UnsupportedError(f"vectors inferred from a {kind}")


def _flat_vector(message: wire.points.Vector) -> edge.NamedVector:
    # The layout of older clients, before the oneof was introduced.
    if message.HasField("indices"):
        return sparse_vector(message.indices.data, message.data)
    if message.HasField("vectors_count") and message.vectors_count > 1:
        width = len(message.data) // message.vectors_count
        return [
            list(message.data[start : start + width])
            for start in range(0, len(message.data), width)
        ]
    return list(message.data)


def vectors(message: wire.points.Vectors) -> edge.Vector:
    """Returns a point's vectors: the unnamed one, or all by name."""
    if message.WhichOneof("vectors_options") == "vectors":
        return {name: vector(item) for name, item in message.vectors.vectors.items()}
    # The engine calls the unnamed vector "".
    return {"": vector(message.vector)}


def point(message: wire.points.PointStruct) -> edge.Point:
    """Returns a point to be stored."""
    named_vectors = vectors(message.vectors) if message.HasField("vectors") else {}
    return edge.Point(point_id(message.id), named_vectors, payload(message.payload))


def _vector_output(item: Any) -> wire.points.VectorOutput:
    points = wire.points
    if isinstance(item, edge.SparseVector):
        sparse = points.SparseVector(indices=item.indices, values=item.values)
        return points.VectorOutput(sparse=sparse)
    if item and isinstance(item[0], (list, tuple)):
        rows = [points.DenseVector(data=row) for row in item]
        return points.VectorOutput(multi_dense=points.MultiDenseVector(vectors=rows))
    return points.VectorOutput(dense=points.DenseVector(data=item))


def vectors_output(stored_vectors: Any) -> wire.points.VectorsOutput | None:
    """Returns the message of a stored point's vectors; None if it was read without them."""
    if stored_vectors is None:
        return None
    points = wire.points
    if not isinstance(stored_vectors, dict):
        return points.VectorsOutput(vector=_vector_output(stored_vectors))
    if set(stored_vectors) == {""}:
        return points.VectorsOutput(vector=_vector_output(stored_vectors[""]))
    by_name = {name: _vector_output(item) for name, item in stored_vectors.items()}
    return points.VectorsOutput(vectors=points.NamedVectorsOutput(vectors=by_name))


def _order_value(number: float | None) -> wire.points.OrderValue | None:
    if number is None:
        return None
    if isinstance(number, int):
        return wire.points.OrderValue(int=number)
    return wire.points.OrderValue(float=number)


def put_scored(target: Any, hits: Iterable[edge.ScoredPoint]) -> None:
    """Adds query results to a repeated field, in their order.

    They are built in place, because a search returns some hundred, and adding a finished message
    to another copies it.
    """
    for hit in hits:
        message = target.add()
        message.score, message.version = hit.score, hit.version
        name = hit.id
        if isinstance(name, int):
            message.id.num = name
        else:
            message.id.uuid = str(name)
        if (vector := hit.vector) is not None:
            message.vectors.CopyFrom(vectors_output(vector))
        if (order := hit.order_value) is not None:
            message.order_value.CopyFrom(_order_value(order))
        if fields := hit.payload:
            _put_payload(message.payload, fields)


def _put_payload(target: Any, fields: Mapping[str, Any]) -> None:
    # Setting ids and times in place takes a third of the time.
    for name, item in fields.items():
        if isinstance(item, str):
            target[name].string_value = item
        elif type(item) is int:
            target[name].integer_value = item
        else:
            target[name].CopyFrom(value_message(item))


def retrieved_points(records: Iterable[edge.Record]) -> list[wire.points.RetrievedPoint]:
    """Returns the messages of records read, in their order."""
    return [
        wire.points.RetrievedPoint(
            id=point_id_message(record.id),
            payload=payload_message(record.payload),
            vectors=vectors_output(record.vector),
            order_value=_order_value(record.order_value),
        )
        for record in records
    ]
