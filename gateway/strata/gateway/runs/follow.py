"""Follows a run from any replica: stored events first, then live ones where it runs here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.domain import RunStore
from strata.gateway.runs.live import LiveRun, RunHub

RunEvent = run_event_pb2.RunEvent

_PAGE = 200
_FIRST_PAUSE_S = 0.1
_PAUSE_GROWTH = 1.6


@dataclass(slots=True)
class _Cursor:
    """Where a follower is."""

    project_id: str
    run_id: str
    after: int
    tokens: bool
    ended: bool = False
    pause: float = _FIRST_PAUSE_S

    def pass_by(self, event: run_event_pb2.RunEvent) -> run_event_pb2.RunEvent:
        self.after = max(self.after, event.sequence)
        self.ended = event.HasField("run_finished")
        return event


class RunFollower:
    """Streams the events of runs.

    A run of this gateway is followed in memory. A run that waits, or that another gateway
    carries out, is read from the database, at pauses that grow to `poll_s`.

    Args:
        store: Where stored events are.
        hub: The runs of this gateway.
        poll_s: Longest pause between two looks.
    """

    def __init__(self, store: RunStore, hub: RunHub, *, poll_s: float = 1.0) -> None:
        self._store = store
        self._hub = hub
        self._poll_s = poll_s

    async def follow(
        self, project_id: str, run_id: str, after: int, *, tokens: bool
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        """Yields the events after a sequence; ends behind the RunFinished.

        Raises:
            NotFoundError: There is no such run in the project.
        """
        at = _Cursor(project_id, run_id, after, tokens)
        while not at.ended:
            live = self._hub.get(project_id, run_id)
            source = self._stored(at) if live is None else self._live(at, live)
            async with aclosing(source) as events:
                async for event in events:
                    yield event

    async def _live(
        self, at: _Cursor, live: LiveRun
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        with live.subscribe(at.after, tokens=at.tokens) as (stored_until, subscription):
            while at.after < stored_until:
                page = await self._store.events(at.project_id, at.run_id, at.after, _PAGE)
                older = [each for each in page.events if each.sequence <= stored_until]
                for stored in older:
                    yield at.pass_by(RunEvent.FromString(stored.payload))
                if not older:
                    break
            async for event in subscription:
                yield at.pass_by(event)
                if at.ended:
                    return

    async def _stored(self, at: _Cursor) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        with self._hub.watch(at.run_id) as news:
            page = await self._store.events(at.project_id, at.run_id, at.after, _PAGE)
            for stored in page.events:
                yield at.pass_by(RunEvent.FromString(stored.payload))
            if page.events:
                at.pause = _FIRST_PAUSE_S
                return
            if page.state.final:
                # Nothing behind the sequence: the caller has the end already.
                at.ended = True
            elif self._hub.get(at.project_id, at.run_id) is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), min(at.pause, self._poll_s))
                at.pause = min(at.pause * _PAUSE_GROWTH, self._poll_s)
