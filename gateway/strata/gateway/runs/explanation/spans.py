"""Explains how a run spent its time and tokens, from its stored events.

The events divide the time of the run: the time between two events is the share of the span that is
open, so the shares of all spans add up to the total. If tools run concurrently, the share belongs
to the one that started first; each tool also has its own duration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.gateway.runs.domain.runs import Run
from strata.shared.convert.usage import usage_from_proto
from strata.shared.usage import Usage

_MAX_NOTE = 300


class RunSpanKind(StrEnum):
    """The activity of a run in a span of time."""

    DELAY = "delay"
    WAIT = "wait"
    BEGIN = "begin"
    COMPILE = "compile"
    MODEL = "model"
    TOOL = "tool"
    COMPACTION = "compaction"
    COMMIT = "commit"


@dataclass(slots=True)
class RunSpan:
    """One span of a run; times in milliseconds.

    Attributes:
        kind: The activity of the run.
        name: The model, the tool, or the reason of a wait.
        step: Number of the step; 0 outside steps.
        step_id: Its id; empty outside steps.
        attempt: Number of the dispatch.
        start_ms: Start, since the run was accepted.
        duration_ms: Duration; None while it is unknown.
        share_ms: Its exclusive share of the run's time.
        model: Handle of the model that used the tokens.
        usage: Tokens; None if it called no model.
        first_token_ms: Time from the request to the first piece of the reply.
        status: Status of the tool call.
        tool_call_id: Id of the tool call.
        note: Remarks.
        calls: Number of model calls.
    """

    kind: RunSpanKind
    name: str
    step: int
    step_id: str
    attempt: int
    start_ms: int
    duration_ms: int | None = None
    share_ms: int = 0
    model: str = ""
    usage: Usage | None = None
    first_token_ms: int | None = None
    status: message_pb2.ToolStatus.ValueType = message_pb2.TOOL_STATUS_UNSPECIFIED
    tool_call_id: str = ""
    note: str = ""
    calls: int = 0

    @property
    def is_relevant(self) -> bool:
        """Whether it took time, or has other information."""
        takes_time = self.kind in (RunSpanKind.MODEL, RunSpanKind.TOOL, RunSpanKind.COMPACTION)
        return takes_time or self.share_ms > 0 or bool(self.note)

    def add_note(self, note: str) -> None:
        """Adds a remark."""
        self.note = f"{self.note}; {note}"[:_MAX_NOTE] if self.note else note[:_MAX_NOTE]


@dataclass(slots=True)
class KindTotal:
    """Sum of the spans of one kind."""

    kind: RunSpanKind
    count: int = 0
    share_ms: int = 0


@dataclass(slots=True)
class ExplainedStep:
    """One step of a run: its spans, in order."""

    number: int
    step_id: str
    spans: list[RunSpan] = field(default_factory=list)


class SpanBuilder:
    """Builds the spans of a run from its stored events, in order.

    Attributes:
        spans: Its spans, in the order of their start.
        total_ms: Milliseconds from its acceptance to its last event.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self.total_ms = 0
        self._spans: list[RunSpan] = []
        self._run = run
        self._step, self._step_id, self._model = 0, "", ""
        self._attempt = 1
        self._tools: dict[str, RunSpan] = {}
        self._current = self._open(RunSpanKind.WAIT, "queue", 0)
        self._note_delay()
        if run.start_time is not None:
            self._switch(self._milliseconds(run.start_time), RunSpanKind.BEGIN)

    def _note_delay(self) -> None:
        """Counts the time before the earliest start as delay, not as wait in the queue."""
        run = self._run
        if run.run_at is None or run.run_at <= run.create_time:
            return
        self._current.kind, self._current.name = RunSpanKind.DELAY, "start_time"
        # A run that waits for its start time, or was cancelled before it, was never in the queue.
        left = run.start_time or run.finish_time
        if left is not None and run.run_at <= left:
            self._switch(self._milliseconds(run.run_at), RunSpanKind.WAIT, "queue")

    @property
    def spans(self) -> list[RunSpan]:
        """The relevant spans."""
        return [span for span in self._spans if span.is_relevant]

    @property
    def parts(self) -> list[KindTotal]:
        """Sums by kind, the largest first."""
        return parts_of(self.spans)

    @property
    def steps(self) -> list[ExplainedStep]:
        """The steps, first to last."""
        steps: dict[int, ExplainedStep] = {}
        for span in self.spans:
            if span.step:
                steps.setdefault(span.step, ExplainedStep(span.step, span.step_id)).spans.append(
                    span
                )
        return [steps[number] for number in sorted(steps)]

    def note(self, event: run_event_pb2.RunEvent) -> None:
        """Processes the next stored event."""
        now = event.elapsed_ms
        if not event.HasField("elapsed_ms"):
            now = self._milliseconds(event.create_time.ToDatetime(tzinfo=UTC))
        self._note_calls(event)
        match event.WhichOneof("event"):
            case "run_started":
                self._note_attempt(event, now)
            case "step_started":
                self._note_step(event.step_started, now)
            case "step_restarted":
                self._advance(now)
                self._add_note_to_model(event.step_restarted.reason)
                self._model = event.step_restarted.model or self._model
            case "window_compacted":
                self._note_compaction(event.window_compacted, now)
            case "tool_started":
                self._note_tool_start(event.tool_started, now)
            case "tool_finished":
                self._note_tool_end(event.tool_finished, now)
            case "message_stored":
                # Several messages of one commit follow each other.
                self._count_as_commit()
                self._switch(now, RunSpanKind.COMPILE)
            case "run_finished":
                self._count_as_commit()
                self._advance(now)
                self._close_tools()
            case _:
                self._advance(now)

    @property
    def _cursor(self) -> int:
        return self.total_ms

    def _note_attempt(self, event: run_event_pb2.RunEvent, now: int) -> None:
        """Starts a dispatch; the end of open spans of an earlier dispatch is unknown."""
        attempt = max(event.run_started.attempt, 1)
        if self._current.kind is not RunSpanKind.BEGIN:
            self._close_tools()
            self._switch(self._cursor, RunSpanKind.WAIT, "take-over")
            self._attempt = self._current.attempt = attempt
            self._current.add_note(f"attempt {attempt} took the run over")
        elif attempt > 1:
            self._attempt = self._current.attempt = attempt
            self._current.add_note(f"attempt {attempt} is the first that began")
        self._switch(now, RunSpanKind.COMPILE)

    def _note_calls(self, event: run_event_pb2.RunEvent) -> None:
        for call in event.model_calls:
            usage = usage_from_proto(call.usage)
            if call.HasField("start_ms"):
                self._note_call(call, usage)
            elif event.WhichOneof("event") == "window_compacted" or usage != Usage():
                self._note_summary(usage, call.model)

    def _note_call(self, call: run_event_pb2.ModelCall, usage: Usage) -> None:
        current = self._current
        self._model = call.model or self._model
        if current.kind is not RunSpanKind.MODEL or current.calls:
            if current.kind is RunSpanKind.COMMIT:
                # The time between an unusable reply and the repeated call.
                current.kind, current.name = RunSpanKind.WAIT, "retry"
            self._switch(call.start_ms, RunSpanKind.MODEL, self._model)
        span = self._current
        span.calls, span.name, span.model, span.usage = 1, self._model, self._model, usage
        if call.HasField("first_token_ms"):
            span.first_token_ms = call.first_token_ms
        if call.lost:
            span.add_note("the reply was lost")
        self._switch(call.start_ms + call.duration_ms, RunSpanKind.COMMIT)
        span.duration_ms = call.duration_ms

    def _note_summary(self, usage: Usage, model: str) -> None:
        """Processes the call of a summary; only its token counts are known."""
        self._count_as_compaction()
        span = self._current
        span.usage = usage if span.usage is None else span.usage + usage
        span.model = model or self._model
        span.calls += 1

    def _note_step(self, started: run_event_pb2.StepStarted, now: int) -> None:
        if started.step != self._step and self._current.kind is RunSpanKind.COMPILE:
            # The time before it was spent on its request.
            self._current.step, self._current.step_id = started.step, started.step_id
        self._step, self._step_id, self._model = started.step, started.step_id, started.model
        self._switch(now, RunSpanKind.MODEL, self._model)

    def _note_compaction(self, compacted: run_event_pb2.WindowCompacted, now: int) -> None:
        self._count_as_compaction()
        tokens = f"about {compacted.tokens_before} to {compacted.tokens_after} tokens"
        self._current.add_note(tokens)
        self._switch(now, RunSpanKind.COMPILE)

    def _count_as_commit(self) -> None:
        if self._current.kind is RunSpanKind.COMPILE:
            self._current.kind = RunSpanKind.COMMIT

    def _count_as_compaction(self) -> None:
        """Counts the time since the last event as compaction."""
        current = self._current
        if current.kind is RunSpanKind.COMPACTION:
            return
        if current.calls or current.kind not in (RunSpanKind.MODEL, RunSpanKind.COMPILE):
            self._switch(self._cursor, RunSpanKind.COMPACTION, self._model)
        else:
            current.kind, current.name = RunSpanKind.COMPACTION, self._model

    def _note_tool_start(self, started: run_event_pb2.ToolStarted, now: int) -> None:
        if self._tools:
            self._advance(now)
            span = self._open(RunSpanKind.TOOL, started.name, now)
        else:
            self._switch(now, RunSpanKind.TOOL, started.name)
            span = self._current
        span.tool_call_id = started.tool_call_id
        self._tools[started.tool_call_id] = span

    def _note_tool_end(self, finished: run_event_pb2.ToolFinished, now: int) -> None:
        returned = finished.tool_return
        span = self._tools.pop(returned.tool_call_id, None)
        self._advance(now)
        if span is None:
            # The call was refused, or its return is from an earlier attempt.
            span = self._open(RunSpanKind.TOOL, returned.name, now)
            span.tool_call_id = returned.tool_call_id
        span.status, span.duration_ms = returned.status, finished.duration_ms
        if self._current is span:
            if self._tools:
                self._current = next(iter(self._tools.values()))
            else:
                self._switch(now, RunSpanKind.COMMIT)

    def _close_tools(self) -> None:
        for span in self._tools.values():
            span.add_note("its end is not known")
        self._tools.clear()

    def _add_note_to_model(self, reason: str) -> None:
        models = (span for span in reversed(self._spans) if span.kind is RunSpanKind.MODEL)
        span = next(models, None)
        if span is not None and span.step == self._step:
            span.add_note(reason)

    def _open(self, kind: RunSpanKind, name: str, now: int) -> RunSpan:
        span = RunSpan(kind, name, self._step, self._step_id, self._attempt, max(now, self._cursor))
        self._spans.append(span)
        return span

    def _advance(self, now: int) -> None:
        """Adds the time until `now` to the open span; a clock that runs back adds nothing."""
        self._current.share_ms += max(now - self._cursor, 0)
        self.total_ms = max(now, self._cursor)

    def _switch(self, now: int, kind: RunSpanKind, name: str = "") -> None:
        self._advance(now)
        if self._current.duration_ms is None and self._current.kind is not RunSpanKind.TOOL:
            self._current.duration_ms = self._current.share_ms
        self._current = self._open(kind, name, now)

    def _milliseconds(self, moment: datetime) -> int:
        return max((moment - self._run.create_time) // timedelta(milliseconds=1), 0)


def parts_of(spans: Iterable[RunSpan]) -> list[KindTotal]:
    """Returns the sums of spans by kind, the largest first."""
    parts: dict[RunSpanKind, KindTotal] = {}
    for span in spans:
        part = parts.setdefault(span.kind, KindTotal(span.kind))
        part.count += 1
        part.share_ms += span.share_ms
    return sorted(parts.values(), key=lambda part: (-part.share_ms, part.kind))
