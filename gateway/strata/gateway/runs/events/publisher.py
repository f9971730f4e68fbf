"""Publishes the events of a live run to its followers in this process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.events.partial_text import DELTAS, PartialTexts
from strata.shared.clock import Clock
from strata.shared.settings import MIB

# Recent events in memory for followers: an event can have some MiB, a run thousands of them. Older
# events are read from the database.
_RECENT_EVENTS = 256
_RECENT_BYTES = MIB
_SUBSCRIBER_EVENTS = 1024
_SUBSCRIBER_BYTES = 8 * MIB


class Subscription:
    """The events of a live run for one follower, after a sequence.

    The iteration ends with RunFinished. It ends without it if the follower falls too far behind or
    the run leaves this gateway; then the follower has to start again.

    Args:
        after: Sequence of the last event that the follower has.
        tokens: Whether the follower gets deltas.
    """

    def __init__(self, after: int, *, tokens: bool) -> None:
        self._after = after
        self._tokens = tokens
        self._events: deque[tuple[int, run_event_pb2.RunEvent]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, event: run_event_pb2.RunEvent, size: int) -> None:
        """Adds an event; a follower that is too far behind is disconnected.

        Args:
            event: The event.
            size: Its size in bytes.
        """
        if self._closed or (not self._tokens and event.WhichOneof("event") in DELTAS):
            return
        if 0 < event.sequence <= self._after:
            return
        full = len(self._events) >= _SUBSCRIBER_EVENTS or self._bytes + size > _SUBSCRIBER_BYTES
        if self._events and full:
            self._events.clear()
            self.close()
            return
        self._events.append((size, event))
        self._bytes += size
        self._changed.set()

    def close(self) -> None:
        """Ends the subscription after the events that it has."""
        self._closed = True
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[run_event_pb2.RunEvent]:
        while True:
            while self._events:
                size, event = self._events.popleft()
                self._bytes -= size
                yield event
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()


@dataclass(frozen=True, slots=True)
class EventStamp:
    """Adds what every event of a run has.

    Attributes:
        run_id: The run.
        clock: Time of events that have none.
    """

    run_id: str
    clock: Clock

    def put(self, event: run_event_pb2.RunEvent, sequence: int) -> None:
        """Adds the sequence, the run and the time to an event."""
        event.sequence = sequence
        event.run_id = self.run_id
        if not event.HasField("create_time"):
            now: datetime = self.clock.now()
            event.create_time.FromDatetime(now)


class EventPublisher:
    """The subscriptions of a live run.

    A new follower first gets the recent events and, of messages that are being streamed, a snapshot
    of the text so far.

    Args:
        last_sequence: Sequence of the last event that was stored before this gateway got the run.
        stamp: For snapshots.

    Attributes:
        closed: Whether the run is over, or has left this gateway.
    """

    def __init__(self, last_sequence: int, stamp: EventStamp) -> None:
        self.closed = False
        self._stamp = stamp
        self._subscriptions: set[Subscription] = set()
        self._texts = PartialTexts()
        self._recent: deque[tuple[int, run_event_pb2.RunEvent]] = deque()
        self._recent_bytes = 0
        self._recent_from = last_sequence + 1

    def publish(self, event: run_event_pb2.RunEvent) -> None:
        """Gives an event to all subscriptions."""
        kind = event.WhichOneof("event")
        self._texts.note(event, kind)
        size = event.ByteSize()
        if kind not in DELTAS:
            self._remember(event, size)
        for subscription in tuple(self._subscriptions):
            subscription.put(event, size)

    def close(self) -> None:
        """Ends all subscriptions."""
        self.closed = True
        for subscription in tuple(self._subscriptions):
            subscription.close()

    @contextmanager
    def subscribe(self, after: int, *, tokens: bool) -> Iterator[tuple[int, Subscription]]:
        """See `LiveRun.subscribe`."""
        subscription = Subscription(after, tokens=tokens)
        for size, event in self._recent:
            subscription.put(event, size)
        if tokens:
            for snapshot in self._texts.snapshots():
                self._stamp.put(snapshot, 0)
                subscription.put(snapshot, snapshot.ByteSize())
        self._subscriptions.add(subscription)
        if self.closed:
            subscription.close()
        try:
            yield self._recent_from - 1, subscription
        finally:
            self._subscriptions.discard(subscription)

    def _remember(self, event: run_event_pb2.RunEvent, size: int) -> None:
        self._recent.append((size, event))
        self._recent_bytes += size
        while len(self._recent) > _RECENT_EVENTS or self._recent_bytes > _RECENT_BYTES:
            oldest_size, oldest = self._recent.popleft()
            self._recent_bytes -= oldest_size
            self._recent_from = oldest.sequence + 1
