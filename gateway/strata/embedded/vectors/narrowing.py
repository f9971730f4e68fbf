"""Leaves out of a search what every point meets anyway.

A condition costs 70 ns for each point that it is checked against, 14 ms for the tenant and the
archive of 100,000 passages; to compare their vectors takes 4 ms. Where all points belong to one
tenant, as on the machine of one person, its condition says nothing.
"""

from __future__ import annotations

import qdrant_edge as edge

from strata.embedded.vectors import wire
from strata.embedded.vectors.convert_filters import filter_of

_MOST_KNOWN = 1_000


class Narrowing:
    """Knows which conditions all points of a shard meet, until something is written to it.

    Told of conditions for one value of an indexed field alone: there the engine's estimate is the
    number itself, and takes a quarter of a millisecond.
    """

    def __init__(self, shard: edge.EdgeShard) -> None:
        self._shard = shard
        self._info: edge.ShardInfo | None = None
        self._known: dict[bytes, bool] = {}

    def needed(self, message: wire.common.Filter) -> edge.Filter | None:
        """Returns the filter without conditions that every point meets; None if nothing is left.

        Raises:
            UnsupportedError: A condition that the engine does not know.
            BadRequestError: A condition that is empty.
        """
        left = [condition for condition in message.must if not self._is_met_by_all(condition)]
        if len(left) == len(message.must):
            return filter_of(message)
        narrowed = wire.common.Filter()
        narrowed.CopyFrom(message)
        del narrowed.must[:]
        narrowed.must.extend(left)
        return filter_of(narrowed) if narrowed.ByteSize() else None

    def _is_met_by_all(self, condition: wire.common.Condition) -> bool:
        field = condition.field
        if not condition.HasField("field") or not _is_for_one(field):
            return False
        name = condition.SerializeToString(deterministic=True)
        if name not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[name] = self._counts_all(field.key, condition)
        return self._known[name]

    def _counts_all(self, key: str, condition: wire.common.Condition) -> bool:
        if self._info is None:
            self._info = self._shard.info()
        if key not in self._info.payload_schema:
            return False
        asked = edge.CountRequest(False, filter_of(wire.common.Filter(must=[condition])))
        return self._shard.count(asked) == self._info.points_count


def _is_for_one(field: wire.common.FieldCondition) -> bool:
    match = field.match
    # Of a condition that tests more as well, the estimate would be one.
    alone = field == wire.common.FieldCondition(key=field.key, match=match)
    return alone and (match.HasField("keyword") or len(match.keywords.strings) == 1)
