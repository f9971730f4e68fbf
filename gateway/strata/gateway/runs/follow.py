"""Follows a run from any replica: stored events first, then live ones from who holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.domain import RunMark, RunStore
from strata.gateway.runs.live import LiveRun, RunHub
from strata.gateway.runs.peers import Peers
from strata.gateway.runs.watching import RunWatch
from strata.shared.errors import FailedPreconditionError, Reason, StrataError
from strata.shared.logs import get_logger

RunEvent = run_event_pb2.RunEvent

_PAGE = 200
# After a peer has failed, the run is read from the database for so long.
_AVOID_S = 2.0
# What a peer that has lost the run may still have on its way.
_LEAVE_S = 0.5

_log = get_logger(__name__)


@dataclass(slots=True)
class _Cursor:
    """Where a follower is.

    Attributes:
        mark: Where the run was when its log was last read; None before that.
        avoid_until: Until then no peer is asked.
    """

    project_id: str
    run_id: str
    after: int
    tokens: bool
    ended: bool = False
    mark: RunMark | None = None
    avoid_until: float = 0.0

    def pass_by(self, event: run_event_pb2.RunEvent) -> run_event_pb2.RunEvent:
        self.after = max(self.after, event.sequence)
        self.ended = event.HasField("run_finished")
        return event


class RunFollower:
    """Streams the events of runs.

    A run of this gateway is followed in memory. A run that another gateway holds is followed
    through that gateway, deltas included. What waits, or cannot be followed so, is read from the
    database whenever the watch says that the run has moved.

    Args:
        store: Where stored events are.
        hub: The runs of this gateway.
        watch: Notices when other runs move.
        peers: The other gateways.
        poll_s: Longest time until a run is looked at without a word of the watch.
    """

    def __init__(
        self, store: RunStore, hub: RunHub, watch: RunWatch, peers: Peers, *, poll_s: float = 1.0
    ) -> None:
        self._store = store
        self._hub = hub
        self._watch = watch
        self._peers = peers
        self._poll_s = poll_s

    async def follow(
        self, project_id: str, run_id: str, after: int, *, tokens: bool
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        """Yields the events after a sequence; ends behind the RunFinished.

        Raises:
            NotFoundError: There is no such run in the project, or its events were deleted.
        """
        at = _Cursor(project_id, run_id, after, tokens)
        while not at.ended:
            async with aclosing(self._source(at)) as events:
                async for event in events:
                    yield _public(event)

    async def follow_held(
        self, project_id: str, run_id: str, after: int, *, tokens: bool
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        """Yields the events of a run for as long as this gateway holds it.

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

    def _source(self, at: _Cursor) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        live = self._hub.get(at.project_id, at.run_id)
        if live is not None:
            return self._live(at, live)
        held = at.mark is not None and self._peers.knows(at.mark.address)
        if held and asyncio.get_running_loop().time() >= at.avoid_until:
            return self._peer(at)
        return self._stored(at)

    async def _live(
        self, at: _Cursor, live: LiveRun
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        with live.subscribe(at.after, tokens=at.tokens) as (stored_until, subscription):
            while at.after < stored_until:
                page = await self._store.events(at.project_id, at.run_id, at.after, _PAGE)
                older = [event for event in page.events if event.sequence <= stored_until]
                for stored in older:
                    yield at.pass_by(RunEvent.FromString(stored.payload))
                if not older:
                    break
            async for event in subscription:
                yield at.pass_by(event)
                if at.ended:
                    return

    async def _peer(self, at: _Cursor) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        assert at.mark is not None
        address = at.mark.address
        stream = self._peers.follow(address, at.run_id, at.after, tokens=at.tokens)
        with self._watch.watch(at.project_id, at.run_id, holder_only=True) as watcher:
            watcher.mark, at.mark = at.mark, None
            moved = asyncio.create_task(watcher.moved.wait())
            reading: asyncio.Task[run_event_pb2.RunEvent | None] | None = None
            try:
                while not at.ended:
                    reading = asyncio.create_task(_next(stream))
                    await asyncio.wait({reading, moved}, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        # The gateway has lost the run, or hangs and does not know that yet.
                        await asyncio.wait({reading}, timeout=_LEAVE_S)
                    if not reading.done() or (event := reading.result()) is None:
                        return
                    yield at.pass_by(event)
            except StrataError as error:
                _log.info("run not followed through its gateway", error=repr(error))
                at.avoid_until = asyncio.get_running_loop().time() + _AVOID_S
            finally:
                moved.cancel()
                if reading is not None and not reading.done():
                    reading.cancel()
                    await asyncio.wait({reading})
                await stream.aclose()

    async def _stored(self, at: _Cursor) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        with self._watch.watch(at.project_id, at.run_id) as watcher:
            page = await self._store.events(at.project_id, at.run_id, at.after, _PAGE)
            at.mark = watcher.mark = page.mark
            for stored in page.events:
                yield at.pass_by(RunEvent.FromString(stored.payload))
            if page.events:
                return
            if page.state.final:
                page.check_kept(at.after)
                # Nothing behind the sequence: the caller has the end already.
                at.ended = True
                return
            if self._hub.get(at.project_id, at.run_id) is not None:
                return
            pause = self._poll_s
            if self._peers.knows(page.mark.address):
                pause = min(pause, at.avoid_until - asyncio.get_running_loop().time())
            await watcher.wait(pause)


async def _next(
    stream: AsyncGenerator[run_event_pb2.RunEvent, None],
) -> run_event_pb2.RunEvent | None:
    return await anext(stream, None)


def _public(event: run_event_pb2.RunEvent) -> run_event_pb2.RunEvent:
    """Returns an event without what is kept for recordings: it may hold text of the prompt.

    Who may start runs need not be able to read memory.
    """
    if not any(call.HasField("request") for call in event.model_calls):
        return event
    public = RunEvent()
    # The event itself may be one that is not stored yet.
    public.CopyFrom(event)
    for call in public.model_calls:
        call.ClearField("request")
    return public
