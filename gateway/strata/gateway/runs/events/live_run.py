"""The event log of a run that this gateway executes.

An event with a sequence is stored before it is published, so a resumed stream equals the original
one, and sequences have no gaps. Later events, including deltas, wait for an event that is not
stored yet, so the order is kept. Events are stored in batches: a batch is written some milliseconds
after its first event, and while it is being written the next one collects. Deltas and snapshots
are not stored and have the sequence 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from strata.api.agent_loop.v1 import turn_service_pb2
from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.convert.approvals import reopened_if_no_call_ran, with_response_format
from strata.gateway.runs.convert.runs import stop_of, taint_of
from strata.gateway.runs.domain.approvals import AskedApproval
from strata.gateway.runs.domain.memory_agents import MessageBuffer, TendedTurn, TranscriptRead
from strata.gateway.runs.domain.runs import (
    Dispatch,
    Fence,
    LeaseLostError,
    RunEnding,
    RunKind,
    RunStore,
    StoredEvent,
)
from strata.gateway.runs.events.flush_timer import FlushTimer
from strata.gateway.runs.events.model_calls import ModelCalls
from strata.gateway.runs.events.partial_text import DELTAS
from strata.gateway.runs.events.progress import RunProgress
from strata.gateway.runs.events.publisher import EventPublisher, EventStamp, Subscription
from strata.gateway.runs.events.unstored_events import UnstoredEvents
from strata.shared.clock import Clock
from strata.shared.convert.usage import usage_from_proto, usage_to_proto
from strata.shared.logs import get_logger
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

RunEvent = run_event_pb2.RunEvent

# How long a batch waits for further events. The first step follows the start of a run immediately,
# and the end of a turn its last message, so these two wait longer.
_START_DELAY_S = 0.05
_MESSAGE_DELAY_S = 0.005
_DELAY_S = 0.002
_RETRY_S = 0.2

_NOT_STORED = "The run ended before this reply was stored."
_REPEATED = "The step was interrupted and is done again."

_log = get_logger(__name__)


class LiveRun:
    """The event log of one active run.

    Attributes:
        has_responded: Whether agent_loop has responded in the present attempt.

    Args:
        dispatch: The run.
        owner: This gateway.
        store: Stores the events.
        clock: Time of events that have none.
    """

    def __init__(self, dispatch: Dispatch, owner: str, store: RunStore, clock: Clock) -> None:
        run = dispatch.run
        self.fence = Fence(run.project_id, run.id, run.attempt, owner)
        self.finished = False
        self.has_responded = False
        self._store = store
        self._clock = clock
        self._accepted_at = clock.monotonic() - dispatch.age_s
        self._model_calls = ModelCalls()
        self._sequence = run.last_sequence
        self._unstored = UnstoredEvents()
        self._stamp = EventStamp(run.id, clock)
        self._publisher = EventPublisher(run.last_sequence, self._stamp)
        self._progress = RunProgress()
        self._stored_progress = self.progress
        self._payload = dispatch.payload
        self._kind = run.kind
        self._tended_turn: TendedTurn | None = None
        self._transcript_read: TranscriptRead | None = None
        self._writing = asyncio.Lock()
        self._flush_timer = FlushTimer()
        self._lost_lease: LeaseLostError | None = None

    @property
    def project_id(self) -> str:
        """The project of the run."""
        return self.fence.project_id

    @property
    def closed(self) -> bool:
        """Whether the log accepts no more events."""
        return self._publisher.closed

    @property
    def usage(self) -> Usage:
        """Tokens of all stored replies, and of unstored calls of this attempt."""
        return self._progress.usage + self._progress.unstored_usage(self.fence.attempt)

    @property
    def progress(self) -> object:
        """A value that changes with each progress of the run."""
        return self._progress.mark

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run was accepted."""
        return max(self._clock.monotonic() - self._accepted_at, 0.0)

    @property
    def step_count(self) -> int:
        """Number of model calls started so far."""
        return self._progress.step

    @property
    def taint(self) -> tuple[str, ...]:
        """Labels of untrusted content in the context of the last model call."""
        return self._progress.taint

    async def restore(self) -> None:
        """Reads the events that an earlier holder of the run has stored."""
        after, progress = 0, RunProgress()
        while True:
            page = await self._store.events(self.fence.project_id, self.fence.run_id, after)
            for stored in page.events:
                event = RunEvent.FromString(stored.payload)
                progress.note(event, event.WhichOneof("event"))
                after = stored.sequence
            if after >= page.last_sequence or not page.events:
                break
        progress.taken_over()
        self._progress = progress
        self._stored_progress = self.progress

    async def redispatch(self) -> None:
        """Continues with a higher attempt.

        Nothing is stored meanwhile, because a write with the old attempt would be refused.

        Raises:
            LeaseLostError: Another gateway holds the run now.
            StrataError: The database failed.
        """
        async with self._writing:
            if self._lost_lease is not None:
                raise self._lost_lease
            self.fence = await self._store.redispatch(self.fence)
            # A model call of the lost dispatch no longer gets a reply.
            self._model_calls.end_open_call(self._elapsed_ms())

    async def append(self, event: run_event_pb2.RunEvent) -> None:
        """Adds an event of agent_loop to the log; waits while too many events are not stored.

        Raises:
            LeaseLostError: Another gateway holds the run now.
        """
        if self._lost_lease is not None:
            raise self._lost_lease
        kind = event.WhichOneof("event")
        if event.HasField("member"):
            # A later attempt relays the members' runs again from their first event.
            if self._progress.has_relayed(event.member):
                return
            self._progress.number_member_step(event)
        elif kind == "message_stored":
            # A later attempt reports messages again that an earlier one has stored.
            message = event.message_stored.message
            if message.id in self._progress.message_ids:
                return
            if self._progress.repeated_by(message):
                restarted = self._withdrawal(_REPEATED)
                self._add(RunEvent(step_restarted=restarted), "step_restarted")
        elif kind == "step_started":
            if self._progress.continues(event.step_started):
                return
            self._add_withdrawal(event)
        self._add(event, kind)
        while self._unstored.is_full:
            await self._flush()
            if self._lost_lease is not None:
                raise self._lost_lease

    def note_reply(self, reply: turn_service_pb2.ReplyReceived) -> None:
        """Records the tokens of a model call, whose step may be lost before it is stored."""
        self._progress.note_reply(
            reply.message_id, usage_from_proto(reply.usage), self.fence.attempt
        )
        self._model_calls.note_reply(reply, self._elapsed_ms())

    def note_request(self, request: turn_service_pb2.ModelRequestSent) -> None:
        """Records the start of a model call, whose reply may be lost."""
        self._progress.note_request(
            request.message_id, request.prompt_tokens, request.bytes_per_token, self.fence.attempt
        )
        self._model_calls.note_request(request, self._elapsed_ms())

    def note_tended(self, tended: turn_service_pb2.TendedTurn) -> None:
        """Records the memory agent of the run's agent, and the messages that it can archive."""
        buffer = None
        if tended.HasField("message_buffer"):
            wire = tended.message_buffer
            buffer = MessageBuffer(
                wire.after_sequence, wire.until_sequence, wire.until_message_id, wire.full
            )
        self._tended_turn = TendedTurn(tended.memory_agent_id, tended.frequency, buffer=buffer)

    def note_transcript_read(self, read: turn_service_pb2.TranscriptRead) -> None:
        """Records how far the run reads its range."""
        self._transcript_read = TranscriptRead(read.until_sequence, read.until_message_id)

    async def finish(
        self, finished: run_event_pb2.RunFinished, *, take_next: bool
    ) -> Dispatch | None:
        """Ends the run: writes its last events, its row and its lease in one statement.

        Text that may have been streamed but is not stored is withdrawn by a `step_restarted` with
        `given_up`, so that a client finally shows exactly the stored text.

        Returns:
            The next run of the conversation, if this gateway has taken it.

        Raises:
            LeaseLostError: Another gateway holds the run now; nothing was written.
            StrataError: The database failed; may be called again.
        """
        self._flush_timer.stop()
        async with self._writing:
            if self._lost_lease is not None:
                raise self._lost_lease
            if self._progress.unstored_text:
                # It stays in the log if the database fails, so a repeated call adds no second one.
                restarted = self._withdrawal(_NOT_STORED, given_up=True)
                self._append(RunEvent(step_restarted=restarted), "step_restarted")
            event = self._last_event(finished)
            serialized = StoredEvent(event.sequence, event.SerializeToString())
            next_run = await self._store.finish(
                self.fence,
                self._ending(event.run_finished),
                [*self._unstored.batch(), serialized],
                take_next=take_next,
            )
            self.finished = True
            self._sequence = event.sequence
            self._unstored.clear()
            self._publish_stored(event.sequence)
            self._publisher.publish(event)
        self.close()
        return next_run

    def _last_event(self, finished: run_event_pb2.RunFinished) -> run_event_pb2.RunEvent:
        event = RunEvent(run_finished=finished)
        # Add the lost tokens of earlier attempts, which the last attempt does not count.
        lost_usage = self._progress.lost_usage(self.fence.attempt)
        if lost_usage != Usage():
            usage = usage_from_proto(finished.usage) + lost_usage
            event.run_finished.usage.CopyFrom(usage_to_proto(usage))
        # Keep them until they are stored, because this may be called again.
        self._model_calls.end_open_call(self._elapsed_ms())
        event.elapsed_ms = self._elapsed_ms()
        event.model_calls.extend(self._model_calls.ended)
        self._stamp.put(event, self._sequence + 1)
        return event

    def _ending(self, finished: run_event_pb2.RunFinished) -> RunEnding:
        """Returns what is stored with the end of the run."""
        stop_reason, failure = stop_of(finished)
        waits = stop_reason is StopReason.REQUIRES_APPROVAL
        ending = RunEnding(
            stop_reason,
            failure,
            usage_from_proto(finished.usage),
            finished.step_count,
            self._approval_request() if waits else None,
            taint_of(finished.taint),
            tended=None if waits else self._finished_turn(),
            reads_transcript=self._kind is RunKind.SLEEPTIME,
            read=self._transcript_read,
        )
        if self._progress.has_effects:
            return ending
        return reopened_if_no_call_ran(
            self._payload, ending, answer_is_stored=self._progress.has_begun
        )

    def _finished_turn(self) -> TendedTurn | None:
        message_id, sequence = self._progress.last_message
        if self._tended_turn is None or sequence < 0:
            # A turn without a stored reply is read with the next turn.
            return None
        return replace(self._tended_turn, message_id=message_id, sequence=sequence)

    async def flush(self) -> None:
        """Tries once to store the unstored events."""
        self._flush_timer.stop()
        await self._flush()

    def close(self) -> None:
        """Ends all subscriptions; the log accepts no more events."""
        self._flush_timer.stop()
        self._publisher.close()

    def subscribe(
        self, after: int, *, tokens: bool
    ) -> AbstractContextManager[tuple[int, Subscription]]:
        """Subscribes to the run for the length of the block.

        Yields:
            The sequence up to which stored events have to be read first (none if it is not above
            `after`), and the subscription, which starts after it.
        """
        return self._publisher.subscribe(after, tokens=tokens)

    def _add_withdrawal(self, event: run_event_pb2.RunEvent) -> None:
        """Withdraws the streamed text of a step that a new attempt repeats."""
        step = event.step_started
        if step.step != self._progress.open_step:
            return
        restarted = self._withdrawal(_REPEATED)
        restarted.step_id = step.step_id
        self._add(RunEvent(step_restarted=restarted), "step_restarted")

    def _withdrawal(self, reason: str, *, given_up: bool = False) -> run_event_pb2.StepRestarted:
        progress = self._progress
        return run_event_pb2.StepRestarted(
            step_id=progress.open_step_id,
            step=progress.open_step,
            reason=reason,
            message_id=progress.open_message_id,
            given_up=given_up,
        )

    def _add(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        if kind in DELTAS:
            self._progress.note(event, kind)
            self._model_calls.note_piece(self._elapsed_ms)
            self._stamp.put(event, 0)
            if self._unstored.unpublished:
                self._unstored.unpublished.append(event)
            else:
                self._publisher.publish(event)
            return
        self._append(event, kind)
        delays = {"run_started": _START_DELAY_S, "message_stored": _MESSAGE_DELAY_S}
        self._flush_timer.schedule(delays.get(kind or "", _DELAY_S), self._flush)

    def _append(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        """Appends an event with the next sequence; it is stored with the next batch."""
        self._sequence += 1
        self._time(event)
        self._stamp.put(event, self._sequence)
        self._progress.note(event, kind)
        self._unstored.add(event)

    def _approval_request(self) -> AskedApproval | None:
        approval = self._progress.asked
        return None if approval is None else with_response_format(approval, self._payload)

    def _elapsed_ms(self) -> int:
        return int(self.elapsed_s * 1000)

    def _time(self, event: run_event_pb2.RunEvent) -> None:
        """Adds the elapsed time and the finished model calls to an event."""
        now_ms = self._elapsed_ms()
        if event.HasField("member"):
            # The times of a member's calls are relative to the start of the member's run.
            shift_ms = now_ms - event.elapsed_ms
            for call in event.model_calls:
                if call.HasField("start_ms"):
                    call.start_ms = max(call.start_ms + shift_ms, 0)
            event.elapsed_ms = now_ms
            return
        event.elapsed_ms = now_ms
        del event.model_calls[:]
        event.model_calls.extend(self._model_calls.take())

    def _publish_stored(self, sequence: int) -> None:
        for event in self._unstored.take_published(sequence):
            self._publisher.publish(event)

    async def _flush(self) -> None:
        async with self._writing:
            batch, progress = self._unstored.batch(), self.progress
            if not batch or self._lost_lease is not None or self.finished:
                return
            try:
                progressed = progress != self._stored_progress
                await self._store.append(self.fence, batch, progressed=progressed)
            except LeaseLostError as error:
                self._lost_lease = error
                return
            except Exception as error:  # noqa: BLE001 - nothing may be shown that is not stored
                _log.warning("events not stored yet", run_id=self.fence.run_id, error=repr(error))
                await asyncio.sleep(_RETRY_S)
                self._flush_timer.schedule(0, self._flush)
                return
            self._stored_progress = progress
            self._unstored.remove(batch)
            self._publish_stored(batch[-1].sequence)


class RunHub:
    """The live runs of this gateway.

    Args:
        notify: Called with the id of a run that has changed in this process.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._runs: dict[str, LiveRun] = {}
        self.notify = notify

    def get(self, project_id: str, run_id: str) -> LiveRun | None:
        """Returns a live run of the project; None if there is none or it is closed."""
        live = self._runs.get(run_id)
        if live is None or live.closed or live.project_id != project_id:
            return None
        return live

    def add(self, live: LiveRun) -> None:
        """Adds a live run."""
        self._runs[live.fence.run_id] = live
        self.notify(live.fence.run_id)

    def remove(self, live: LiveRun) -> None:
        """Removes a run, and ends its subscriptions."""
        if self._runs.get(live.fence.run_id) is live:
            del self._runs[live.fence.run_id]
        live.close()
