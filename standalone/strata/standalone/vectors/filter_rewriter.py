"""Rewrites the filter of a search so that it is cheap for the embedded engine.

The engine has no search graph (HNSW) and checks every point, at 70 ns for each condition. With
100,000 passages the conditions on project and archive take 14 ms, the comparison of vectors 4 ms.
If all points belong to one project, as in a local installation, the condition on it can be dropped.
If a range contains most points, reading them from its index in the order of their values is slower
than checking each point in storage order.
"""

from __future__ import annotations

from dataclasses import dataclass

import qdrant_edge as edge

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.convert_filters import filter_of

_MOST_KNOWN = 1_000
# A smaller shard is searched fast with any filter.
_MANY_POINTS = 10_000
# A condition that is met by at least this share of the points is broad. At about this share,
# checking a range point by point becomes faster than its index. The figures are in decision 0171.
_BROAD = 0.4


@dataclass(slots=True)
class RewrittenFilter:
    """A filter, rewritten for the points of a shard.

    Attributes:
        whole: Equivalent to the filter; None if every point passes.
        broad: The conditions that most points meet.
        rest: Equivalent to the filter without `broad`; None if every point passes.
        share: Share of the points that meet all of `broad`, 0 to 1. It starts as an estimate and is
            lowered when the share among the best points is smaller.
        sampled: Whether `share` was corrected by a sample.
    """

    whole: edge.Filter | None
    broad: list[edge.ConditionType]
    rest: edge.Filter | None
    share: float
    sampled: bool = False


class FilterRewriter:
    """Rewrites filters for the points of a shard. Make a new one after every write to the shard."""

    def __init__(self, shard: edge.EdgeShard) -> None:
        self._shard = shard
        self._info: edge.ShardInfo | None = None
        self._shares: dict[bytes, float] = {}
        self._filters: dict[bytes, RewrittenFilter] = {}

    def equivalent(self, message: wire.common.Filter) -> edge.Filter | None:
        """Returns an equivalent filter; None if every point passes.

        Raises:
            UnsupportedError: A condition that the engine does not know.
            BadRequestError: A condition that is empty.
        """
        return self.rewritten(message).whole

    def rewritten(self, message: wire.common.Filter) -> RewrittenFilter:
        """Returns the rewritten filter; the same object each time, so that it can learn.

        Raises:
            UnsupportedError: A condition that the engine does not know.
            BadRequestError: A condition that is empty.
        """
        # Cached, because both arms of a search have the same filter.
        name = message.SerializeToString(deterministic=True)
        if name not in self._filters:
            if len(self._filters) >= _MOST_KNOWN:
                self._filters.clear()
            self._filters[name] = self._rewritten(message)
        return self._filters[name]

    def _rewritten(self, message: wire.common.Filter) -> RewrittenFilter:
        rest = wire.common.Filter()
        rest.CopyFrom(message)
        del rest.must[:]
        broad: list[wire.common.Condition] = []
        share = 1.0
        for condition in message.must:
            if self._is_met_by_all(condition):
                continue
            if broad_share := self._broad_share(condition):
                broad.append(condition)
                share *= broad_share
            else:
                rest.must.append(condition)
        whole = wire.common.Filter()
        whole.CopyFrom(rest)
        for condition in broad:
            if _is_range(condition.field):
                # A double negation is equivalent, and the engine uses no index for it.
                denied = wire.common.Filter(must_not=[condition])
                whole.must_not.append(wire.common.Condition(filter=denied))
            else:
                whole.must.append(condition)
        if len(rest.must) == len(message.must):
            return RewrittenFilter(filter_of(message), [], filter_of(message), share)
        conditions = filter_of(wire.common.Filter(must=broad)).must or []
        return RewrittenFilter(_unless_empty(whole), conditions, _unless_empty(rest), share)

    def _is_met_by_all(self, condition: wire.common.Condition) -> bool:
        # For one value of an indexed field alone, the engine's estimate is exact, and takes a
        # quarter of a millisecond.
        alone = condition.HasField("field") and _is_for_one(condition.field)
        return alone and self._share(condition) == 1.0

    def _broad_share(self, condition: wire.common.Condition) -> float:
        """Returns the share of the points that meet a condition; 0 if it is not broad."""
        if not condition.HasField("field") or not _is_estimated(condition.field):
            return 0.0
        share = self._share(condition)
        assert self._info is not None
        return share if self._info.points_count >= _MANY_POINTS and share >= _BROAD else 0.0

    def _share(self, condition: wire.common.Condition) -> float:
        """Returns the estimated share of points that meet a condition; 0 without an index."""
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
        request = edge.CountRequest(False, filter_of(wire.common.Filter(must=[condition])))
        return self._shard.count(request) / self._info.points_count


def _unless_empty(message: wire.common.Filter) -> edge.Filter | None:
    return filter_of(message) if message.ByteSize() else None


def _is_for_one(field: wire.common.FieldCondition) -> bool:
    match = field.match
    # For a condition with further tests, the engine's estimate would not be exact.
    alone = field == wire.common.FieldCondition(key=field.key, match=match)
    return alone and (match.HasField("keyword") or len(match.keywords.strings) == 1)


def _is_estimated(field: wire.common.FieldCondition) -> bool:
    return _is_range(field) or field.match.WhichOneof("match_value") in ("keyword", "keywords")


def _is_range(field: wire.common.FieldCondition) -> bool:
    return field.HasField("range") or field.HasField("datetime_range")
