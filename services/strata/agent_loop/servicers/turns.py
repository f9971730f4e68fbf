"""TurnService: runs each turn in its own task and streams its events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from strata.agent_loop.convert.evidence import EvidenceReader
from strata.agent_loop.convert.recordings import recording_to_json
from strata.agent_loop.convert.runs import response_to_proto, run_from_proto
from strata.agent_loop.domain.agent.groups import GroupStore
from strata.agent_loop.domain.ports import Journal
from strata.agent_loop.domain.run.events import Piece, RunEvent, continues_piece, join_pieces
from strata.agent_loop.domain.run.journal import JournalKey, key_of
from strata.agent_loop.loop.control import TurnControl
from strata.agent_loop.loop.turn import Turn, control_of
from strata.agent_loop.loop.turn_ports import Ports
from strata.agent_loop.replay.recorder import Recorder, not_recordable
from strata.agent_loop.replay.recording import MAX_RECORDING_BYTES
from strata.api.agent_loop.v1 import turn_service_pb2 as pb
from strata.api.agent_loop.v1 import turn_service_pb2_grpc as pb_grpc
from strata.protocol.errors import AbortedError, InvalidArgumentError, StrataError
from strata.shared import context
from strata.shared.ids import check_id
from strata.shared.logs import get_logger

Context = Any

_EVENTS_AHEAD = 256
_PIECE_BYTES = 256 * 1024

_log = get_logger(__name__)


class EventQueue:
    """Implements `domain.ports.EventSink`: passes events from the turn to the stream.

    Pieces of a reply that wait for the reader are joined, because each event costs more than its
    text. A turn that is far ahead of its reader waits. After the reader has gone events are
    dropped, so that the turn can finish its cleanup.
    """

    def __init__(self, ahead: int = _EVENTS_AHEAD) -> None:
        self._ahead = ahead
        self._events: deque[RunEvent] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._open = True

    async def emit(self, event: RunEvent) -> None:
        """Adds an event; waits while the queue is full."""
        while self._open and len(self._events) >= self._ahead:
            turn = asyncio.get_running_loop().create_future()
            self._writers.append(turn)
            await turn
        if self._open:
            self._events.append(event)
            self._wake_reader()

    def end(self) -> None:
        """Wakes the reader at the end of the turn."""
        self._wake_reader()

    def abandon(self) -> None:
        """Drops all events: the reader has gone."""
        self._open = False
        self._events.clear()
        self._wake_writers()

    async def next(self, turn: asyncio.Task[None]) -> RunEvent | None:
        """Returns the next event; None when the turn is over and all events were read."""
        events = self._events
        while not events:
            if turn.done():
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        event = events.popleft()
        if isinstance(event, Piece) and events and continues_piece(events[0], event):
            pieces: list[Piece] = [event]
            while events and continues_piece(following := events[0], event):
                pieces.append(following)
                events.popleft()
            event = join_pieces(pieces)
        if self._writers:
            self._wake_writers()
        return event

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writers(self) -> None:
        # All of them, because one may have been cancelled; each checks again for space.
        while self._writers:
            writer = self._writers.popleft()
            if not writer.done():
                writer.set_result(None)


@dataclass(frozen=True, slots=True)
class DetachTerms:
    """Time limits for finishing turns without a caller, in seconds.

    Attributes:
        finish_s: Longest time for finishing the current step. Model and tool calls that end within
            this time are not repeated; most do.
        mark_s: Life time of the journal mark that makes the next attempt wait.
    """

    finish_s: float = 60.0
    mark_s: float = 6.0


class DetachedTurns:
    """Finishes the current step of turns whose stream to the gateway broke.

    If the gateway died, the reply (which the provider charged for) and the results of running tools
    are still stored. A mark in the journal makes the next attempt wait for it. The mark is renewed
    while the step runs, and expires if this process dies.

    Args:
        journal: Stores the marks.
        terms: Time limits.
    """

    def __init__(self, journal: Journal, terms: DetachTerms) -> None:
        self._journal = journal
        self._terms = terms
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def adopt(self, turn: asyncio.Task[None], key: JournalKey) -> None:
        """Takes over a running turn."""
        task = asyncio.create_task(self._finish(turn, key), name=f"detached {key.run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancels all turns; known results of their calls are journalled."""
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _finish(self, turn: asyncio.Task[None], key: JournalKey) -> None:
        until = asyncio.get_running_loop().time() + self._terms.finish_s
        # The call that set the deadline is over.
        with context.use(replace(context.current(), deadline=None)):
            try:
                while not turn.done() and asyncio.get_running_loop().time() < until:
                    await self._mark(turn, key, self._terms.mark_s)
                    await asyncio.wait({turn}, timeout=self._terms.mark_s / 3)
            finally:
                if not turn.done():
                    turn.cancel()
                    await asyncio.wait({turn})
            await self._mark(turn, key, 0.0)
        if not turn.cancelled() and (error := turn.exception()) is not None:
            _log.info("turn without a caller failed", run_id=key.run_id, error=repr(error))

    async def _mark(self, turn: asyncio.Task[None], key: JournalKey, seconds: float) -> None:
        try:
            async with asyncio.timeout(self._terms.mark_s / 2):
                await self._journal.mark_finishing(key, seconds)
        except AbortedError:
            # The next attempt did not wait, so this one can no longer store anything.
            turn.cancel()
        except (StrataError, TimeoutError) as error:
            _log.warning("turn without a caller not marked", run_id=key.run_id, error=repr(error))


class TurnServicer(pb_grpc.TurnServiceServicer):
    """Runs turns.

    Args:
        ports: The services, stores and models that turns use.
        groups: Stores which agent holds the conversation of a swarm.
        terms: Time limits for turns whose caller has gone.
    """

    def __init__(self, ports: Ports, groups: GroupStore, terms: DetachTerms | None = None) -> None:
        self._ports = ports
        self._groups = groups
        self._detached = DetachedTurns(ports.journal, terms or DetachTerms())

    async def close(self) -> None:
        """Cancels the turns that run without a caller."""
        await self._detached.close()

    async def BeginGroupRun(
        self, request: pb.BeginGroupRunRequest, _context: Context
    ) -> pb.BeginGroupRunResponse:
        """Returns the agent that holds the conversation of a swarm when a run begins."""
        check_id(request.group_id, "group", field="group_id")
        check_id(request.run_id, "run", field="run_id")
        holder = await self._groups.begin_run(request.group_id, request.run_id)
        return pb.BeginGroupRunResponse(holder_agent_id=holder)

    async def HandOver(self, request: pb.HandOverRequest, _context: Context) -> pb.HandOverResponse:
        """Stores that the conversation of a swarm was handed over to a member."""
        check_id(request.group_id, "group", field="group_id")
        check_id(request.run_id, "run", field="run_id")
        check_id(request.holder_agent_id, "agent", field="holder_agent_id")
        await self._groups.hand_over(
            request.group_id, request.run_id, request.number, request.holder_agent_id
        )
        return pb.HandOverResponse()

    async def ExecuteRun(
        self, request_iterator: AsyncIterator[pb.ExecuteRunRequest], _context: Context
    ) -> AsyncIterator[pb.ExecuteRunResponse]:
        """Runs one turn. Only a request to cancel cancels it; a broken stream detaches it."""
        requests = aiter(request_iterator)
        try:
            run = run_from_proto(await anext(requests))
        except StopAsyncIteration:
            raise InvalidArgumentError("The stream ended before it named a run.") from None
        events, control = EventQueue(), control_of(run)
        turn = asyncio.create_task(Turn(self._ports, run, events, control).run(), name=run.run_id)
        turn.add_done_callback(lambda _: events.end())
        listening = asyncio.create_task(_cancel_on_request(requests, control, turn))
        try:
            while (event := await events.next(turn)) is not None:
                yield response_to_proto(event, run.run_id, self._ports.clock.now())
            await turn
        finally:
            listening.cancel()
            if turn.done():
                if not turn.cancelled():
                    # Retrieved, so that asyncio does not log an unretrieved exception.
                    turn.exception()
            else:
                control.detached = True
                events.abandon()
                self._detached.adopt(turn, key_of(run))

    async def RecordRun(
        self, request_iterator: AsyncIterator[pb.RecordRunRequest], _context: Context
    ) -> AsyncIterator[pb.RecordRunResponse]:
        """Returns the recording of a run, in pieces."""
        reader = EvidenceReader()
        async for request in request_iterator:
            reader.take(request)
        recording = await Recorder(self._ports).record(reader.evidence)
        # In a thread: up to 64 MiB would block the event loop for seconds.
        data = await asyncio.to_thread(recording_to_json, recording)
        if len(data) > MAX_RECORDING_BYTES:
            raise not_recordable(
                recording.turn.run_id,
                f"its recording has {len(data):,} bytes, more than {MAX_RECORDING_BYTES:,}",
            )
        for start in range(0, len(data), _PIECE_BYTES):
            yield pb.RecordRunResponse(piece=data[start : start + _PIECE_BYTES])


async def _cancel_on_request(
    requests: AsyncIterator[pb.ExecuteRunRequest], control: TurnControl, turn: asyncio.Task[None]
) -> None:
    async for request in requests:
        if request.cancel and not control.cancelled:
            control.cancelled = True
            turn.cancel()
