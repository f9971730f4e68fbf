"""The trace of a run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gateway_records import new_run
from span_records import SpanRecorder, traced
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.convert.runs import execute_request
from strata.gateway.runs.dispatch.run_traces import RunTraces, end_run_span
from strata.gateway.runs.domain.runs import NewRun
from strata.shared.context import RequestContext, use
from strata.shared.tracing.spans import Span, Tracer

REQUEST = turn_pb.ExecuteRunRequest(agent_id="agent-1", max_steps=3)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
FINISHED = run_event_pb2.RunFinished(stop_reason=run_event_pb2.STOP_REASON_END_TURN)


def accepted(**changes: Any) -> NewRun:
    return new_run(payload=REQUEST.SerializeToString(), **changes)


ACCEPTED = datetime(2026, 5, 4, 3, 2, 1, 123456, UTC)


def dispatch(run: NewRun, attempt: int = 1) -> Any:
    stored = SimpleNamespace(
        id=run.id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        project_id=run.principal.project_id,
        kind=run.kind,
        attempt=attempt,
        create_time=ACCEPTED,
        run_at=run.run_at,
    )
    return SimpleNamespace(run=stored, payload=run.payload)


def context_of(traces: RunTraces, run: NewRun, attempt: int = 1) -> RequestContext:
    return traces.context(dispatch(run, attempt), RequestContext(request_id=run.id))


def span_of(traces: RunTraces, run: NewRun, attempt: int = 1) -> Span:
    span = context_of(traces, run, attempt).span
    assert span is not None
    return span


def test_the_span_of_a_run_is_a_child_of_the_call_in_every_gateway() -> None:
    recorder = SpanRecorder()
    first, second = (RunTraces(Tracer(recorder, 0.0)) for _ in range(2))
    with traced(recorder) as call:
        marked = first.mark(accepted())
    begun, taken_over = span_of(first, marked), span_of(second, marked, attempt=2)
    assert begun.span_id == taken_over.span_id == marked.id.replace("-", "")[-16:]
    for span in (begun, taken_over):
        assert (span.trace_id, span.parent_id) == (call.trace_id, call.span_id)
    assert taken_over.attributes["strata.run.attempt"] == 2


@pytest.mark.parametrize("delay_s", [None, -5, 0, 60])
def test_the_span_of_a_run_starts_at_its_due_time_in_all_attempts(
    delay_s: int | None,
) -> None:
    traces = RunTraces(Tracer(SpanRecorder()))
    run_at = None if delay_s is None else ACCEPTED + timedelta(seconds=delay_s)
    run = accepted(run_at=run_at)
    starts = {span_of(traces, run, attempt).start_ns for attempt in (1, 2)}
    due = ACCEPTED + timedelta(seconds=max(delay_s or 0, 0))
    assert starts == {int(due.timestamp()) * 10**9 + 123456 * 1000}


def test_the_stored_trace_context_is_not_sent_to_the_agent_loop() -> None:
    recorder = SpanRecorder()
    with traced(recorder):
        run = accepted()
        marked = RunTraces(Tracer(recorder)).mark(run)
    assert turn_pb.ExecuteRunRequest.FromString(marked.payload).traceparent
    assert marked.payload_hash == run.payload_hash
    sent = execute_request(dispatch(marked), 1, 60.0)
    assert (sent.agent_id, sent.max_steps, sent.traceparent) == ("agent-1", 3, "")


def test_a_run_of_an_unsampled_call_is_not_sampled() -> None:
    traces = RunTraces(Tracer(SpanRecorder(), 1.0))
    with use(RequestContext(trace_id=TRACE, sampled=False)):
        marked = traces.mark(accepted())
    context = context_of(traces, marked)
    assert (context.trace_id, context.span, context.sampled) == (TRACE, None, False)


@pytest.mark.parametrize("later", [False, True])
def test_a_run_without_a_call_or_with_a_start_time_has_a_trace_of_its_own(later: bool) -> None:
    recorder = SpanRecorder()
    traces = RunTraces(Tracer(recorder))
    if later:
        with traced(recorder):
            run = traces.mark(accepted(run_at=datetime.now(UTC) + timedelta(hours=1)))
    else:
        run = traces.mark(accepted())
    assert run.payload == REQUEST.SerializeToString()
    spans = [span_of(traces, run) for _ in range(2)]
    digits = run.id.removeprefix("run-").replace("-", "")
    for span in spans:
        assert (span.trace_id, span.span_id, span.parent_id) == (digits, digits[16:], "")


def test_run_ids_in_another_format_have_a_trace() -> None:
    traces = RunTraces(Tracer(SpanRecorder()))
    first, again, other = (
        span_of(traces, accepted(id=run_id)) for run_id in ("run-1", "run-1", "run-2")
    )
    assert len(first.trace_id) == 32
    assert first.trace_id == again.trace_id != other.trace_id


def test_a_run_ends_its_span_with_its_stop_reason_and_tokens() -> None:
    recorder = SpanRecorder()
    traces = RunTraces(Tracer(recorder))
    finished = run_event_pb2.RunFinished()
    finished.CopyFrom(FINISHED)
    finished.usage.prompt_tokens, finished.usage.completion_tokens = 12, 3
    end_run_span(span_of(traces, accepted()), finished)
    [span] = recorder.spans
    assert (span.name, span.error_type) == ("invoke_agent", "")
    assert span.attributes["strata.run.stop_reason"] == "end_turn"
    assert span.attributes["gen_ai.usage.input_tokens"] == 12
    assert span.attributes["gen_ai.usage.output_tokens"] == 3


def test_a_failed_run_has_the_reason_and_not_the_message() -> None:
    recorder = SpanRecorder()
    finished = run_event_pb2.RunFinished(stop_reason=run_event_pb2.STOP_REASON_ERROR)
    finished.error.reason, finished.error.message = "MODEL_UNAVAILABLE", "secret"
    end_run_span(span_of(RunTraces(Tracer(recorder)), accepted()), finished)
    assert recorder.named("invoke_agent").error_type == "MODEL_UNAVAILABLE"
    assert "secret" not in recorder.texts()


def test_without_a_tracer_no_trace_context_is_stored() -> None:
    traces = RunTraces(None)
    with use(RequestContext(trace_id=TRACE, sampled=True)):
        run = accepted()
        assert traces.mark(run) is run
    context = context_of(traces, run)
    assert (context.span, context.sampled) == (None, False)
    assert len(context.trace_id) == 32
    end_run_span(context.span, FINISHED)
