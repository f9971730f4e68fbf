"""TurnService: runs a turn in a task of its own and streams its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from strata.agent_loop.convert.runs import event_to_proto, run_from_proto
from strata.agent_loop.domain.events import RunEvent
from strata.agent_loop.loop.ports import Ports
from strata.agent_loop.loop.turn import Turn
from strata.api.agent_loop.v1 import turn_service_pb2 as pb
from strata.api.agent_loop.v1 import turn_service_pb2_grpc as pb_grpc

Context = Any

_EVENTS_AHEAD = 256


class EventQueue:
    """Implements `loop.ports.EventSink`: hands events from the turn to the stream.

    A turn that is far ahead of its reader waits. Once the reader is gone nothing waits any
    more, so that a cancelled turn can finish what it must.
    """

    def __init__(self, ahead: int = _EVENTS_AHEAD) -> None:
        self._queue: asyncio.Queue[RunEvent | None] = asyncio.Queue(ahead)
        self._open = True

    async def emit(self, event: RunEvent) -> None:
        """Hands an event on."""
        if self._open:
            await self._queue.put(event)

    def end(self) -> None:
        """Says that no event follows."""
        # A reader that waits for more is woken; a full queue has a reader on its way.
        if not self._queue.full():
            self._queue.put_nowait(None)

    def abandon(self) -> None:
        """Says that nobody reads any more."""
        self._open = False
        while not self._queue.empty():
            self._queue.get_nowait()

    async def next(self, turn: asyncio.Task[None]) -> RunEvent | None:
        """Returns the next event; None when the turn is over and all were read."""
        if turn.done() and self._queue.empty():
            return None
        return await self._queue.get()


class TurnServicer(pb_grpc.TurnServiceServicer):
    """Runs turns."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def ExecuteRun(
        self, request: pb.ExecuteRunRequest, context: Context
    ) -> AsyncIterator[pb.ExecuteRunResponse]:
        """Runs one turn. When the stream is cancelled, the turn is, and ends what it must."""
        run = run_from_proto(request)
        events = EventQueue()
        turn = asyncio.create_task(Turn(self._ports, run, events).run(), name=run.run_id)
        turn.add_done_callback(lambda _: events.end())
        try:
            while (event := await events.next(turn)) is not None:
                now = self._ports.clock.now()
                yield pb.ExecuteRunResponse(event=event_to_proto(event, run.run_id, now))
            await turn
        finally:
            if not turn.done():
                events.abandon()
                turn.cancel()
                await asyncio.wait({turn})
            if not turn.cancelled():
                # Read, so that the loop does not complain of an error that nobody took.
                turn.exception()
