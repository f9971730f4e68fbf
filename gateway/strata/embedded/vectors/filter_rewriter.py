"""Makes the conditions of a search cheap for an engine that has no graph.

A condition costs 70 ns for each point that it is checked against, 14 ms for the tenant and the
archive of 100,000 passages; to compare their vectors takes 4 ms. Where all points belong to one
tenant, as on the machine of one person, its condition says nothing. And where a range holds most
points, to take them from its index, in the order of their values, costs more than to look at each
point in the order in which they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import qdrant_edge as edge

from strata.embedded.vectors import wire
from strata.embedded.vectors.convert_filters import filter_of

_MOST_KNOWN = 1_000
# A smaller shard is searched in no time whatever the form of its filter.
_MANY_POINTS = 10_000
# Part of the points from which on a condition is broad: about where it begins to pay to check a
# range point by point, and far from where that costs three times as much. The figures are in
# decision 0065.
_BROAD = 0.4


@dataclass(slots=True)
class RewrittenFilter:
    """A filter as the points of a shard need it.

    Attributes:
        whole: Passes the same points as the filter; None if every point passes.
        broad: Those of its conditions that most points meet.
        rest: Passes the same points as the filter without these; None if every point passes.
        share: Part of the points that meets all of `broad`, 0 to 1: estimated, and lowered to what
            was seen when it was less among the best.
        sampled: Set when `share` was corrected by what was seen.
    """

    whole: edge.Filter | None
    broad: list[edge.ConditionType]
    rest: edge.Filter | None
    share: float
    sampled: bool = False


class FilterRewriter:
    """Knows what conditions mean to the points of a shard, until something is written to it."""

    def __init__(self, shard: edge.EdgeShard) -> None:
        self._shard = shard
        self._info: edge.ShardInfo | None = None
        self._shares: dict[bytes, float] = {}
        self._filters: dict[bytes, RewrittenFilter] = {}

    def needed(self, message: wire.common.Filter) -> edge.Filter | None:
        """Returns a filter that passes the same points; None if every point passes.

        Raises:
            UnsupportedError: A condition that the engine does not know.
            BadRequestError: A condition that is empty.
        """
        return self.of(message).whole

    def of(self, message: wire.common.Filter) -> RewrittenFilter:
        """Returns the filter in its parts, the same object until something is written.

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

    def _narrowed(self, message: wire.common.Filter) -> RewrittenFilter:
        rest = wire.common.Filter()
        rest.CopyFrom(message)
        del rest.must[:]
        broad: list[wire.common.Condition] = []
        share = 1.0
        for condition in message.must:
            if self._is_met_by_all(condition):
                continue
            if held := self._broad_share(condition):
                broad.append(condition)
                share *= held
            else:
                rest.must.append(condition)
        whole = wire.common.Filter()
        whole.CopyFrom(rest)
        for condition in broad:
            if _is_range(condition.field):
                # Twice denied is the same, whatever a point holds, and no index offers its points.
                denied = wire.common.Filter(must_not=[condition])
                whole.must_not.append(wire.common.Condition(filter=denied))
            else:
                whole.must.append(condition)
        if len(rest.must) == len(message.must):
            return RewrittenFilter(filter_of(message), [], filter_of(message), share)
        conditions = filter_of(wire.common.Filter(must=broad)).must or []
        return RewrittenFilter(_unless_empty(whole), conditions, _unless_empty(rest), share)

    def _is_met_by_all(self, condition: wire.common.Condition) -> bool:
        # Of one value of an indexed field alone the engine's estimate is the number itself, and
        # takes a quarter of a millisecond.
        alone = condition.HasField("field") and _is_for_one(condition.field)
        return alone and self._share(condition) == 1.0

    def _broad_share(self, condition: wire.common.Condition) -> float:
        """The part of many points that meets a condition; 0 if it is not most of them."""
        if not condition.HasField("field") or not _is_estimated(condition.field):
            return 0.0
        share = self._share(condition)
        assert self._info is not None
        return share if self._info.points_count >= _MANY_POINTS and share >= _BROAD else 0.0

    def _share(self, condition: wire.common.Condition) -> float:
        """The estimated part of the points that meets a condition; 0 if its field has no index."""
        name = condition.SerializeToString(deterministic=True)
        if name not in self._shares:
            if len(self._shares) >= _MOST_KNOWN:
                self._shares.clear()
            self._shares[name] = self._estimated(condition)
        return self._shares[name]

    def _estimated(self, condition: wire.common.Condition) -> float:
        if self._info is None:
            self._info = self._shard.info()
        if condition.field.key not in self._info.payload_schema or not self._info.points_count:
            return 0.0
        asked = edge.CountRequest(False, filter_of(wire.common.Filter(must=[condition])))
        return self._shard.count(asked) / self._info.points_count


def _unless_empty(message: wire.common.Filter) -> edge.Filter | None:
    return filter_of(message) if message.ByteSize() else None


def _is_for_one(field: wire.common.FieldCondition) -> bool:
    match = field.match
    # Of a condition that tests more as well, the estimate would be one.
    alone = field == wire.common.FieldCondition(key=field.key, match=match)
    return alone and (match.HasField("keyword") or len(match.keywords.strings) == 1)


def _is_estimated(field: wire.common.FieldCondition) -> bool:
    return _is_range(field) or field.match.WhichOneof("match_value") in ("keyword", "keywords")


def _is_range(field: wire.common.FieldCondition) -> bool:
    return field.HasField("range") or field.HasField("datetime_range")
