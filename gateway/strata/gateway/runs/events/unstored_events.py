"""The events of a live run that are not stored yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.domain.runs import StoredEvent
from strata.shared.settings import MIB

_MAX_UNSTORED = 64
_MAX_UNSTORED_BYTES = 8 * MIB
_MAX_UNPUBLISHED = 1024


class UnstoredEvents:
    """Events that wait until they are stored, and the deltas behind them.

    Attributes:
        unpublished: The events in their order, deltas included; they are published when the events
            with a sequence are stored.
    """

    def __init__(self) -> None:
        self.unpublished: deque[run_event_pb2.RunEvent] = deque()
        self._events: list[StoredEvent] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no further event should be added before some are stored."""
        if len(self._events) >= _MAX_UNSTORED or self._bytes >= _MAX_UNSTORED_BYTES:
            return True
        return len(self.unpublished) >= _MAX_UNPUBLISHED

    def add(self, event: run_event_pb2.RunEvent) -> None:
        """Adds an event with a sequence."""
        serialized = StoredEvent(event.sequence, event.SerializeToString())
        self._events.append(serialized)
        self._bytes += len(serialized.payload)
        self.unpublished.append(event)

    def batch(self) -> list[StoredEvent]:
        """Returns the events that have to be stored."""
        return list(self._events)

    def remove(self, batch: Sequence[StoredEvent]) -> None:
        """Removes the events of a batch, which are stored now."""
        del self._events[: len(batch)]
        self._bytes -= sum(len(event.payload) for event in batch)

    def clear(self) -> None:
        """Removes all events that have to be stored, because the run has ended."""
        self._events.clear()
        self._bytes = 0

    def take_published(self, sequence: int) -> Iterator[run_event_pb2.RunEvent]:
        """Removes and yields the events up to a stored one, and the deltas right after it."""
        while self.unpublished and self.unpublished[0].sequence <= sequence:
            yield self.unpublished.popleft()
