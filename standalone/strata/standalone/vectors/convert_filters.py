"""Converts filters from Qdrant's messages to the engine's objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import qdrant_edge as edge

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.convert_points import point_id
from strata.standalone.vectors.errors import BadRequestError, UnsupportedError

_BOUNDS = ("lt", "gt", "gte", "lte")


def filter_of(message: wire.common.Filter) -> edge.Filter:
    """Returns the engine's filter.

    Raises:
        UnsupportedError: The engine does not support a condition.
    """
    minimum = None
    if message.HasField("min_should"):
        minimum = edge.MinShould(
            _conditions(message.min_should.conditions) or [], message.min_should.min_count
        )
    return edge.Filter(
        must=_conditions(message.must),
        should=_conditions(message.should),
        must_not=_conditions(message.must_not),
        min_should=minimum,
    )


def optional_filter(message: Any, field: str = "filter") -> edge.Filter | None:
    """Returns the filter in a request's field, None if it has none."""
    return filter_of(getattr(message, field)) if message.HasField(field) else None


def _conditions(messages: Iterable[wire.common.Condition]) -> list[edge.ConditionType] | None:
    return [_condition(message) for message in messages] or None


def _condition(message: wire.common.Condition) -> edge.ConditionType:
    match message.WhichOneof("condition_one_of"):
        case "field":
            return _field(message.field)
        case "filter":
            return filter_of(message.filter)
        case "has_id":
            return edge.HasIdCondition({point_id(item) for item in message.has_id.has_id})
        case "is_empty":
            return edge.IsEmptyCondition(message.is_empty.key)
        case "is_null":
            return edge.IsNullCondition(message.is_null.key)
        case "has_vector":
            return edge.HasVectorCondition(message.has_vector.has_vector)
        case "nested":
            return edge.NestedCondition(message.nested.key, filter_of(message.nested.filter))
        case None:
            raise BadRequestError("a filter condition is empty")
        case kind:
            raise UnsupportedError(f"the filter condition {kind}")


def _field(message: wire.common.FieldCondition) -> edge.FieldCondition:
    for geo in ("geo_bounding_box", "geo_radius", "geo_polygon"):
        if message.HasField(geo):
            raise UnsupportedError(f"the filter condition {geo}")
    parts: dict[str, Any] = {}
    if message.HasField("match"):
        parts["match"] = _match(message.match)
    if message.HasField("range"):
        parts["range"] = edge.RangeFloat(**_bounds(message.range))
    if message.HasField("datetime_range"):
        bounds = _bounds(message.datetime_range)
        parts["range"] = edge.RangeDateTime(
            **{name: moment.ToJsonString() for name, moment in bounds.items()}
        )
    if message.HasField("values_count"):
        parts["values_count"] = edge.ValuesCount(**_bounds(message.values_count))
    for flag in ("is_empty", "is_null"):
        if message.HasField(flag):
            parts[flag] = getattr(message, flag)
    if not parts:
        raise BadRequestError(f"the condition on {message.key!r} tests nothing")
    return edge.FieldCondition(message.key, **parts)


def _bounds(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in _BOUNDS if message.HasField(name)}


def _any_of(values: Sequence[Any]) -> edge.MatchType:
    # For a set of one value the engine would take twice as long.
    return edge.MatchValue(values[0]) if len(values) == 1 else edge.MatchAny(list(values))


def _match(message: wire.common.Match) -> edge.MatchType:
    match message.WhichOneof("match_value"):
        case "keyword" | "integer" | "boolean" as kind:
            return edge.MatchValue(getattr(message, kind))
        case "keywords":
            return _any_of(message.keywords.strings)
        case "integers":
            return _any_of(message.integers.integers)
        case "except_keywords":
            return edge.MatchExcept(list(message.except_keywords.strings))
        case "except_integers":
            return edge.MatchExcept(list(message.except_integers.integers))
        case "text":
            return edge.MatchText(message.text)
        case "text_any":
            return edge.MatchTextAny(message.text_any)
        case "phrase":
            return edge.MatchPhrase(message.phrase)
        case "prefix":
            return edge.MatchPrefix(message.prefix)
        case "substring":
            return edge.MatchSubstring(message.substring)
        case _:
            raise BadRequestError("a match condition is empty")
