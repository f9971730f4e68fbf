"""The event log of a run that this gateway carries out, and those who follow it here.

Two kinds of durable events are told apart. A *report* (run, step or tool started, tool
finished, message stored) is shown at once and stored with the next batch, within a
second: what it tells of is durable already in the room that reports it, so that a crash
of the gateway takes back only the report, and the next dispatch makes it again. What
the gateway itself decides (the end) is shown only once it is stored. Deltas are not
stored. A report that a crash did take back leaves its number unused: whoever takes the
run over skips `SEQUENCE_GAP` numbers, so no number ever means two events. A follower
from before the crash may then be told of a message twice, with the same message id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.convert import stop_of, taint_of, usage_of
from strata.gateway.runs.convert_approvals import answered_in_vain
from strata.gateway.runs.domain import (
    Dispatch,
    Ending,
    Fence,
    LeaseLostError,
    RunStore,
    StopReason,
    StoredEvent,
    Usage,
)
from strata.gateway.runs.progress import Progress
from strata.shared.clock import Clock
from strata.shared.errors import StrataError
from strata.shared.logs import get_logger

RunEvent = run_event_pb2.RunEvent

SEQUENCE_GAP = 100
"""Numbers skipped at a take-over; more than can be reported and not yet stored."""

_MAX_UNSTORED = 64
_REPORT_DELAY_S = 1.0
# The end of a turn comes right behind its last message: one statement stores both.
_COALESCE_S = 0.005
_RETRY_S = 0.2
_RECENT_EVENTS = 256
_SUBSCRIBER_EVENTS = 1024

_DELTAS = frozenset({"text_delta", "reasoning_delta", "tool_call_delta", "text_snapshot"})
_REPORTS = frozenset(
    {
        "run_started",
        "step_started",
        "step_restarted",
        "tool_started",
        "tool_finished",
        "message_stored",
    }
)

_log = get_logger(__name__)


class Subscription:
    """The events of a live run for one follower, from a sequence on.

    Iterating ends with the RunFinished, or without one when the follower fell too far
    behind or the run left this gateway: then it has to look again.
    """

    def __init__(self, *, tokens: bool) -> None:
        self._tokens = tokens
        self._events: deque[run_event_pb2.RunEvent] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, event: run_event_pb2.RunEvent) -> None:
        """Adds an event, unless the follower is too far behind: then it is cut off."""
        if self._closed or (not self._tokens and event.WhichOneof("event") in _DELTAS):
            return
        if len(self._events) >= _SUBSCRIBER_EVENTS:
            self._events.clear()
            self.close()
            return
        self._events.append(event)
        self._changed.set()

    def close(self) -> None:
        """Lets the follower read what is there, and no more."""
        self._closed = True
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[run_event_pb2.RunEvent]:
        while True:
            while self._events:
                yield self._events.popleft()
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()


@dataclass(slots=True)
class _Text:
    """The text of the message under way, as far as it was shown."""

    message_id: str = ""
    text: str = ""
    reasoning: str = ""

    def note(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        match kind:
            case "text_delta":
                self._continue(event.text_delta.message_id)
                self.text += event.text_delta.text
            case "reasoning_delta":
                self._continue(event.reasoning_delta.message_id)
                self.reasoning += event.reasoning_delta.text
            case "step_started" | "step_restarted" | "message_stored" | "run_finished":
                self._continue("")
            case _:
                pass

    def _continue(self, message_id: str) -> None:
        if message_id != self.message_id or not message_id:
            self.message_id = message_id
            self.text = self.reasoning = ""


class LiveRun:
    """The log of one run under way.

    Args:
        dispatch: The run.
        owner: This gateway.
        store: Where the events go.
        clock: Stamps events that have no time.
    """

    def __init__(self, dispatch: Dispatch, owner: str, store: RunStore, clock: Clock) -> None:
        run = dispatch.run
        self.fence = Fence(run.project_id, run.id, run.attempt, owner)
        self.finished = False
        self.closed = False
        self._store = store
        self._clock = clock
        self._sequence = run.last_sequence + (SEQUENCE_GAP if run.attempt > 1 else 0)
        self._shown_sequence = run.last_sequence
        self._unstored: list[StoredEvent] = []
        self._held: list[run_event_pb2.RunEvent] = []
        self._recent: deque[run_event_pb2.RunEvent] = deque()
        self._recent_from = run.last_sequence + 1
        self._subscriptions: set[Subscription] = set()
        self._progress = Progress()
        self._payload = dispatch.payload
        self._text = _Text()
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._lost: LeaseLostError | None = None

    @property
    def project_id(self) -> str:
        """The tenant, for whoever wants to follow."""
        return self.fence.project_id

    @property
    def usage(self) -> Usage:
        """Tokens of the replies stored so far."""
        return self._progress.usage

    @property
    def step_count(self) -> int:
        """Model calls begun so far."""
        return self._progress.step

    @property
    def taint(self) -> tuple[str, ...]:
        """Labels of strangers' text in the context of the last model call."""
        return self._progress.taint

    async def restore(self) -> None:
        """Reads what an earlier holder of the run has stored, to go on from there."""
        after = 0
        while True:
            page = await self._store.events(self.fence.project_id, self.fence.run_id, after)
            for stored in page.events:
                event = RunEvent.FromString(stored.payload)
                self._progress.note(event, event.WhichOneof("event"))
                after = stored.sequence
            if after >= page.last_sequence or not page.events:
                break
        self._progress.restarted_step = 0

    async def redispatch(self) -> None:
        """Goes on under a higher attempt.

        Nothing is stored meanwhile: under the old attempt this gateway would seem another one.

        Raises:
            LeaseLostError: Another gateway holds the run now.
            StrataError: The database failed.
        """
        async with self._writing:
            if self._lost is not None:
                raise self._lost
            self.fence = await self._store.redispatch(self.fence)
        self._progress.restarted_step = 0

    async def append(self, event: run_event_pb2.RunEvent) -> None:
        """Adds an event of agent_loop to the log; waits while too many are not stored.

        Raises:
            LeaseLostError: Another gateway holds the run now.
        """
        if self._lost is not None:
            raise self._lost
        kind = event.WhichOneof("event")
        if kind == "message_stored":
            # A later attempt tells again what an earlier one stored.
            if event.message_stored.message.id in self._progress.message_ids:
                return
        elif kind == "step_started":
            self._announce_restart(event)
        self._add(event, kind)
        while len(self._unstored) >= _MAX_UNSTORED:
            await self._flush()
            if self._lost is not None:
                raise self._lost

    async def finish(
        self, finished: run_event_pb2.RunFinished, *, take_next: bool
    ) -> Dispatch | None:
        """Ends the run: its last events, its row and its lease in one statement.

        Returns:
            The next run of the conversation, if this gateway has taken it.

        Raises:
            LeaseLostError: Another gateway holds the run now; nothing was written.
            StrataError: The database failed; may be called again.
        """
        self._stop_timer()
        async with self._writing:
            if self._lost is not None:
                raise self._lost
            event = RunEvent(run_finished=finished)
            self._stamp(event, self._sequence + 1)
            stored = StoredEvent(event.sequence, event.SerializeToString())
            stop_reason, failure = stop_of(finished)
            waits = stop_reason is StopReason.REQUIRES_APPROVAL
            ending = Ending(
                stop_reason,
                failure,
                usage_of(finished.usage),
                finished.step_count,
                self._progress.asked if waits else None,
                taint_of(finished.taint),
            )
            if not self._progress.began:
                ending = answered_in_vain(self._payload, ending)
            following = await self._store.finish(
                self.fence, ending, [*self._unstored, stored], take_next=take_next
            )
            self.finished = True
            self._sequence = event.sequence
            self._unstored.clear()
            self._show_held(len(self._held))
            self._show(event)
        self.close()
        return following

    async def flush(self) -> None:
        """Stores what is not stored yet, if that is possible at once."""
        self._stop_timer()
        await self._flush()

    def close(self) -> None:
        """Lets all followers go; the log takes no more events."""
        self.closed = True
        self._stop_timer()
        for subscription in tuple(self._subscriptions):
            subscription.close()

    @contextmanager
    def subscribe(self, after: int, *, tokens: bool) -> Iterator[tuple[int, Subscription]]:
        """Follows the run while the block lasts.

        Yields:
            The sequence up to which stored events have to be read first (none if it is
            not above `after`), and the subscription, which begins behind it.
        """
        subscription = Subscription(tokens=tokens)
        for event in self._recent:
            if event.sequence > after:
                subscription.put(event)
        if tokens and (self._text.text or self._text.reasoning):
            subscription.put(self._snapshot())
        self._subscriptions.add(subscription)
        if self.closed:
            subscription.close()
        try:
            yield self._recent_from - 1, subscription
        finally:
            self._subscriptions.discard(subscription)

    def _snapshot(self) -> run_event_pb2.RunEvent:
        under_way = self._text
        event = RunEvent(
            text_snapshot=run_event_pb2.TextSnapshot(
                message_id=under_way.message_id,
                text=under_way.text,
                reasoning=under_way.reasoning,
            )
        )
        self._stamp(event, self._shown_sequence)
        return event

    def _announce_restart(self, event: run_event_pb2.RunEvent) -> None:
        step = event.step_started
        progress = self._progress
        if step.step != progress.open_step or progress.restarted_step == step.step:
            return
        restarted = run_event_pb2.StepRestarted(
            step_id=step.step_id,
            step=step.step,
            reason="The step was interrupted and is done again.",
        )
        self._add(RunEvent(step_restarted=restarted), "step_restarted")

    def _add(self, event: run_event_pb2.RunEvent, kind: str | None) -> None:
        self._progress.note(event, kind)
        if kind in _DELTAS:
            self._stamp(event, self._sequence)
            self._show_or_hold(event)
            return
        self._sequence += 1
        self._stamp(event, self._sequence)
        self._unstored.append(StoredEvent(event.sequence, event.SerializeToString()))
        if kind in _REPORTS:
            self._show_or_hold(event)
            self._schedule(_REPORT_DELAY_S)
        else:
            self._held.append(event)
            self._schedule(_COALESCE_S)

    def _stamp(self, event: run_event_pb2.RunEvent, sequence: int) -> None:
        event.sequence = sequence
        event.run_id = self.fence.run_id
        if not event.HasField("create_time"):
            now: datetime = self._clock.now()
            event.create_time.FromDatetime(now)

    def _show_or_hold(self, event: run_event_pb2.RunEvent) -> None:
        # Behind something that is not stored yet everything waits, so the order holds.
        if self._held:
            self._held.append(event)
        else:
            self._show(event)

    def _show_held(self, count: int) -> None:
        for event in self._held[:count]:
            self._show(event)
        del self._held[:count]

    def _show(self, event: run_event_pb2.RunEvent) -> None:
        kind = event.WhichOneof("event")
        self._text.note(event, kind)
        if kind not in _DELTAS:
            self._shown_sequence = event.sequence
            self._recent.append(event)
            self._trim()
        for subscription in tuple(self._subscriptions):
            subscription.put(event)

    def _trim(self) -> None:
        first_unstored = self._unstored[0].sequence if self._unstored else self._sequence + 1
        while len(self._recent) > _RECENT_EVENTS and self._recent[0].sequence < first_unstored:
            self._recent_from = self._recent.popleft().sequence + 1

    def _schedule(self, delay: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + delay
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._start_flush)

    def _start_flush(self) -> None:
        self._timer = None
        self._flusher = asyncio.get_running_loop().create_task(self._flush())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _flush(self) -> None:
        async with self._writing:
            batch, shown = list(self._unstored), len(self._held)
            if not batch or self._lost is not None or self.finished:
                return
            try:
                await self._store.append(self.fence, batch)
            except LeaseLostError as error:
                self._lost = error
                return
            except StrataError as error:
                _log.warning("events not stored yet", run_id=self.fence.run_id, error=repr(error))
                await asyncio.sleep(_RETRY_S)
                self._schedule(0)
                return
            del self._unstored[: len(batch)]
            self._show_held(shown)


class RunHub:
    """The live runs of this gateway, and those who wait for one to become live."""

    def __init__(self) -> None:
        self._runs: dict[str, LiveRun] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def get(self, project_id: str, run_id: str) -> LiveRun | None:
        """Returns a live run of the project; never one that is closed."""
        live = self._runs.get(run_id)
        if live is None or live.closed or live.project_id != project_id:
            return None
        return live

    def add(self, live: LiveRun) -> None:
        """Makes a run live."""
        self._runs[live.fence.run_id] = live
        self.notify(live.fence.run_id)

    def remove(self, live: LiveRun) -> None:
        """Takes a run out, and lets its followers go."""
        if self._runs.get(live.fence.run_id) is live:
            del self._runs[live.fence.run_id]
        live.close()

    def notify(self, run_id: str) -> None:
        """Wakes those who wait for news of a run that is not live."""
        for event in self._waiting.get(run_id, ()):
            event.set()

    @contextmanager
    def watch(self, run_id: str) -> Iterator[asyncio.Event]:
        """Gives an event that is set when there are news of the run."""
        event = asyncio.Event()
        self._waiting.setdefault(run_id, set()).add(event)
        try:
            yield event
        finally:
            waiting = self._waiting[run_id]
            waiting.discard(event)
            if not waiting:
                del self._waiting[run_id]
