"""Follows a run from any replica: stored events first, then live ones where it runs here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.domain import RunStore
from strata.gateway.runs.live import RunHub

RunEvent = run_event_pb2.RunEvent

_PAGE = 200
_FIRST_PAUSE_S = 0.1
_PAUSE_GROWTH = 1.6


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
    ) -> AsyncIterator[run_event_pb2.RunEvent]:
        """Yields the events after a sequence; ends behind the RunFinished.

        Raises:
            NotFoundError: There is no such run in the project.
        """
        pause = _FIRST_PAUSE_S
        while True:
            live = self._hub.get(project_id, run_id)
            if live is not None:
                with live.subscribe(after, tokens=tokens) as (stored_until, subscription):
                    while after < stored_until:
                        page = await self._store.events(project_id, run_id, after, _PAGE)
                        older = [each for each in page.events if each.sequence <= stored_until]
                        if not older:
                            break
                        for stored in older:
                            yield RunEvent.FromString(stored.payload)
                            after = stored.sequence
                    async for event in subscription:
                        after = max(after, event.sequence)
                        yield event
                        if event.HasField("run_finished"):
                            return
                continue
            with self._hub.watch(run_id) as news:
                page = await self._store.events(project_id, run_id, after, _PAGE)
                for stored in page.events:
                    event = RunEvent.FromString(stored.payload)
                    after = stored.sequence
                    yield event
                    if event.HasField("run_finished"):
                        return
                if page.events:
                    pause = _FIRST_PAUSE_S
                    continue
                if page.state.final:
                    return
                if self._hub.get(project_id, run_id) is None:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(news.wait(), min(pause, self._poll_s))
                    pause = min(pause * _PAUSE_GROWTH, self._poll_s)
