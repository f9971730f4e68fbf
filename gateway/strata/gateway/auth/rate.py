"""Rate limiter with a token bucket per key."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from strata.protocol.errors import Reason, ResourceExhaustedError
from strata.shared.clock import Clock


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimiter:
    """Limits each key to `per_second` calls per second on average, and `burst` calls at once.

    It counts per gateway process: with n replicas a key may make n times as many calls.

    Args:
        clock: The time.
        per_second: Calls per second; 0 for no limit.
        burst: Calls at once.
        size: Maximum number of buckets; beyond that the key idle for longest loses its bucket, and
            starts with a full one.
    """

    def __init__(self, clock: Clock, *, per_second: float, burst: int, size: int = 10_000) -> None:
        self._clock = clock
        self._per_second = per_second
        self._burst = float(burst)
        self._size = size
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key: str) -> None:
        """Counts a call.

        Raises:
            ResourceExhaustedError: The bucket is empty (``QUOTA_EXCEEDED``).
        """
        if self._per_second <= 0:
            return
        now = self._clock.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self._burst, now)
            if len(self._buckets) > self._size:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
            filled = bucket.tokens + (now - bucket.at) * self._per_second
            bucket.tokens, bucket.at = min(self._burst, filled), now
        if bucket.tokens < 1.0:
            raise ResourceExhaustedError(
                "The key has made too many calls in a short time.",
                reason=Reason.QUOTA_EXCEEDED,
                metadata={"quota": "calls_per_second", "limit": f"{self._per_second:g}"},
                retry_after=(1.0 - bucket.tokens) / self._per_second,
            )
        bucket.tokens -= 1.0
