"""Makes the conditions of a search cheap for an engine that has no graph.

A condition costs 70 ns for each point that it is checked against, 14 ms for the tenant and the
archive of 100,000 passages; to compare their vectors takes 4 ms. Where all points belong to one
tenant, as on the machine of one person, its condition says nothing. And where a range holds most
points, to take them from its index, in the order of their values, costs more than to look at each
point in the order in which they are stored.
"""

from __future__ import annotations

from collections.abc import Callable

import qdrant_edge as edge

from strata.embedded.vectors import wire
from strata.embedded.vectors.convert_filters import filter_of

_MOST_KNOWN = 1_000
# A smaller shard is searched in no time whatever the form of its filter.
_MANY_POINTS = 10_000
# Part of the points from which on a range is checked point by point: about where that begins to
# pay, and far from where it costs three times as much. The figures are in decision 0065.
_BROAD = 0.4


class Narrowing:
    """Knows what conditions mean to the points of a shard, until something is written to it."""

    def __init__(self, shard: edge.EdgeShard) -> None:
        self._shard = shard
        self._info: edge.ShardInfo | None = None
        self._known: dict[bytes, bool] = {}
        self._filters: dict[bytes, edge.Filter | None] = {}

    def needed(self, message: wire.common.Filter) -> edge.Filter | None:
        """Returns a filter that passes the same points; None if every point passes.

        Raises:
            UnsupportedError: A condition that the engine does not know.
            BadRequestError: A condition that is empty.
        """
        # Both arms of a search have the same filter.
        name = message.SerializeToString(deterministic=True)
        if name not in self._filters:
            if len(self._filters) >= _MOST_KNOWN:
                self._filters.clear()
            self._filters[name] = self._narrowed(message)
        return self._filters[name]

    def _narrowed(self, message: wire.common.Filter) -> edge.Filter | None:
        left = [each for each in message.must if not self._is_met_by_all(each)]
        broad = [self._is_broad(each) for each in left]
        if len(left) == len(message.must) and not any(broad):
            return filter_of(message)
        narrowed = wire.common.Filter()
        narrowed.CopyFrom(message)
        del narrowed.must[:]
        for condition, by_point in zip(left, broad, strict=True):
            if by_point:
                # Twice denied is the same, whatever a point holds, and no index offers its points.
                denied = wire.common.Filter(must_not=[condition])
                narrowed.must_not.append(wire.common.Condition(filter=denied))
            else:
                narrowed.must.append(condition)
        return filter_of(narrowed) if narrowed.ByteSize() else None

    def _is_met_by_all(self, condition: wire.common.Condition) -> bool:
        # Of one value of an indexed field alone the engine's estimate is the number itself, and
        # takes a quarter of a millisecond.
        if not condition.HasField("field") or not _is_for_one(condition.field):
            return False
        return self._learned(condition, lambda count, points: count == points)

    def _is_broad(self, condition: wire.common.Condition) -> bool:
        if not condition.HasField("field") or not _is_range(condition.field):
            return False
        return self._learned(
            condition, lambda count, points: points >= _MANY_POINTS and count >= _BROAD * points
        )

    def _learned(
        self, condition: wire.common.Condition, verdict: Callable[[int, int], bool]
    ) -> bool:
        """What follows from the estimate for a condition; nothing if its field has no index."""
        name = condition.SerializeToString(deterministic=True)
        if name not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[name] = self._judged(condition, verdict)
        return self._known[name]

    def _judged(
        self, condition: wire.common.Condition, verdict: Callable[[int, int], bool]
    ) -> bool:
        if self._info is None:
            self._info = self._shard.info()
        if condition.field.key not in self._info.payload_schema:
            return False
        asked = edge.CountRequest(False, filter_of(wire.common.Filter(must=[condition])))
        return verdict(self._shard.count(asked), self._info.points_count)


def _is_for_one(field: wire.common.FieldCondition) -> bool:
    match = field.match
    # Of a condition that tests more as well, the estimate would be one.
    alone = field == wire.common.FieldCondition(key=field.key, match=match)
    return alone and (match.HasField("keyword") or len(match.keywords.strings) == 1)


def _is_range(field: wire.common.FieldCondition) -> bool:
    return field.HasField("range") or field.HasField("datetime_range")
