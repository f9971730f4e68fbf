"""Follows a run from any replica: first stored events, then live ones from its holder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.domain.runs import RunMark, RunStore
from strata.gateway.runs.domain.timing import POLL_S
from strata.gateway.runs.events.live_run import LiveRun, RunHub
from strata.gateway.runs.events.peers import Peers
from strata.gateway.runs.events.run_watch import RunWatch
from strata.protocol.errors import FailedPreconditionError, Reason, StrataError
from strata.shared.logs import get_logger

RunEvent = run_event_pb2.RunEvent

_PAGE_SIZE = 200
# Seconds to read a run from the database after its peer has failed.
_PEER_PAUSE_S = 2.0
# Seconds to wait for further events of a peer that has lost the run.
_PEER_GRACE_S = 0.5

_log = get_logger(__name__)


@dataclass(slots=True)
class _Cursor:
    """Position of a follower.

    Attributes:
        mark: Position of the run when its log was last read; None before that.
        avoid_until: Time until which no peer is asked.
    """

    project_id: str
    run_id: str
    after: int
    tokens: bool
    ended: bool = False
    mark: RunMark | None = None
    avoid_until: float = 0.0

    def advance(self, event: run_event_pb2.RunEvent) -> run_event_pb2.RunEvent:
        self.after = max(self.after, event.sequence)
        self.ended = event.HasField("run_finished")
        return event


class RunFollower:
    """Streams the events of runs.

    A run of this gateway is followed in memory. A run of another gateway is followed through that
    gateway, including deltas. Any other run is read from the database whenever the watch reports a
    change.

    Args:
        store: The stored events.
        hub: The runs of this gateway.
        watch: Reports changes of other runs.
        peers: The other gateways.
        poll_s: Maximum seconds between two reads of a run without a report of the watch.
    """

    def __init__(
        self, store: RunStore, hub: RunHub, watch: RunWatch, peers: Peers, *, poll_s: float = POLL_S
    ) -> None:
        self._store = store
        self._hub = hub
        self._watch = watch
        self._peers = peers
        self._poll_s = poll_s

    async def follow(
        self, project_id: str, run_id: str, after: int, *, tokens: bool
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        """Yields the events after a sequence; ends after RunFinished.

        Raises:
            NotFoundError: There is no such run in the project, or its events were deleted.
        """
        cursor = _Cursor(project_id, run_id, after, tokens)
        while not cursor.ended:
            async with aclosing(self._source(cursor)) as events:
                async for event in events:
                    yield _without_recordings(event)

    async def follow_held(
        self, project_id: str, run_id: str, after: int, *, tokens: bool
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        """Yields the events of a run while this gateway holds it.

        Raises:
            FailedPreconditionError: It does not hold the run (``RUN_NOT_FOUND``).
        """
        live = self._hub.get(project_id, run_id)
        if live is None:
            raise FailedPreconditionError(
                "The run is not held by this gateway.",
                reason=Reason.RUN_NOT_FOUND,
                metadata={"id": run_id},
            )
        async with aclosing(self._live(_Cursor(project_id, run_id, after, tokens), live)) as events:
            async for event in events:
                yield event

    def _source(self, cursor: _Cursor) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        live = self._hub.get(cursor.project_id, cursor.run_id)
        if live is not None:
            return self._live(cursor, live)
        is_held_by_peer = cursor.mark is not None and self._peers.knows(cursor.mark.address)
        if is_held_by_peer and asyncio.get_running_loop().time() >= cursor.avoid_until:
            return self._peer(cursor)
        return self._stored(cursor)

    async def _live(
        self, cursor: _Cursor, live: LiveRun
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        with live.subscribe(cursor.after, tokens=cursor.tokens) as (stored_until, subscription):
            while cursor.after < stored_until:
                page = await self._store.events(
                    cursor.project_id, cursor.run_id, cursor.after, _PAGE_SIZE
                )
                older = [event for event in page.events if event.sequence <= stored_until]
                for stored in older:
                    yield cursor.advance(RunEvent.FromString(stored.payload))
                if not older:
                    break
            async for event in subscription:
                yield cursor.advance(event)
                if cursor.ended:
                    return

    async def _peer(self, cursor: _Cursor) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        assert cursor.mark is not None
        address = cursor.mark.address
        stream = self._peers.follow(address, cursor.run_id, cursor.after, tokens=cursor.tokens)
        with self._watch.watch(cursor.project_id, cursor.run_id, holder_only=True) as watcher:
            watcher.mark, cursor.mark = cursor.mark, None
            moved = asyncio.create_task(watcher.changed.wait())
            reading: asyncio.Task[run_event_pb2.RunEvent | None] | None = None
            try:
                while not cursor.ended:
                    reading = asyncio.create_task(_next(stream))
                    await asyncio.wait({reading, moved}, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        # The gateway has lost the run, or hangs.
                        await asyncio.wait({reading}, timeout=_PEER_GRACE_S)
                    if not reading.done() or (event := reading.result()) is None:
                        return
                    yield cursor.advance(event)
            except StrataError as error:
                _log.info("run not followed through its gateway", error=repr(error))
                cursor.avoid_until = asyncio.get_running_loop().time() + _PEER_PAUSE_S
            finally:
                moved.cancel()
                if reading is not None and not reading.done():
                    reading.cancel()
                    await asyncio.wait({reading})
                await stream.aclose()

    async def _stored(self, cursor: _Cursor) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        with self._watch.watch(cursor.project_id, cursor.run_id) as watcher:
            page = await self._store.events(
                cursor.project_id, cursor.run_id, cursor.after, _PAGE_SIZE
            )
            cursor.mark = watcher.mark = page.mark
            for stored in page.events:
                yield cursor.advance(RunEvent.FromString(stored.payload))
            if page.events:
                return
            if page.state.final:
                page.check_kept(cursor.after)
                # There are no events after the sequence: the caller has the last one already.
                cursor.ended = True
                return
            if self._hub.get(cursor.project_id, cursor.run_id) is not None:
                return
            pause = self._poll_s
            if self._peers.knows(page.mark.address):
                pause = min(pause, cursor.avoid_until - asyncio.get_running_loop().time())
            await watcher.wait(pause)


async def _next(
    stream: AsyncGenerator[run_event_pb2.RunEvent, None],
) -> run_event_pb2.RunEvent | None:
    return await anext(stream, None)


def _without_recordings(event: run_event_pb2.RunEvent) -> run_event_pb2.RunEvent:
    """Returns an event without data for recordings, which may contain text of the prompt.

    A key that may start runs may lack the permission to read memory.
    """
    if not any(call.HasField("request") for call in event.model_calls):
        return event
    public = RunEvent()
    # A copy, because the event may not be stored yet.
    public.CopyFrom(event)
    for call in public.model_calls:
        call.ClearField("request")
    return public
