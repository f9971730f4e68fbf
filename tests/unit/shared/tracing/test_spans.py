"""Sampling and content of spans."""

from __future__ import annotations

import time

import pytest

from span_records import SpanRecorder
from strata.protocol.errors import NotFoundError, Reason, UnavailableError
from strata.shared.context import RequestContext, current, use
from strata.shared.ids import new_id
from strata.shared.tracing.nested import nested_span
from strata.shared.tracing.spans import Span, SpanKind, Tracer, error_type
from strata.shared.tracing.trace_context import TraceContext, new_trace_id, parse_traceparent


def begun(recorder: SpanRecorder, start_ns: int = 0) -> Span:
    tracer = Tracer(recorder)
    span = tracer.begin("recall", "read", SpanKind.SERVER, tracer.join(None), start_ns=start_ns)
    assert span is not None
    return span


@pytest.mark.parametrize("make_id", [new_trace_id, lambda: new_id("run")[-36:].replace("-", "")])
def test_the_share_of_sampled_traces_is_the_ratio(make_id: object) -> None:
    assert callable(make_id)
    tracer = Tracer(SpanRecorder(), 0.25)
    sampled = sum(tracer.samples(make_id()) for _ in range(2000))
    # Ten standard deviations around 500.
    assert 306 < sampled < 694


@pytest.mark.parametrize(("ratio", "sampled"), [(0.0, False), (1.0, True)])
def test_none_or_all_traces_are_sampled(ratio: float, sampled: bool) -> None:
    tracer = Tracer(SpanRecorder(), ratio)
    assert {tracer.samples(new_trace_id()) for _ in range(50)} == {sampled}


@pytest.mark.parametrize(("ratio", "sampled"), [(0.0, True), (1.0, False)])
def test_the_sampling_decision_of_the_caller_is_kept(ratio: float, sampled: bool) -> None:
    tracer = Tracer(SpanRecorder(), ratio)
    parent = TraceContext(new_trace_id(), "1" * 16, sampled)
    assert tracer.join(parent) is parent
    span = tracer.begin("recall", "read", SpanKind.SERVER, parent)
    assert (span is not None) is sampled


def test_a_child_is_in_the_trace_and_the_service_of_its_parent() -> None:
    recorder = SpanRecorder()
    parent = begun(recorder)
    child = parent.child("query", SpanKind.CLIENT, {"rows": 3})
    child.end()
    parent.end()
    assert recorder.spans == [child, parent]
    assert (child.trace_id, child.parent_id) == (parent.trace_id, parent.span_id)
    assert (child.service, child.attributes) == ("recall", {"rows": 3})
    assert parent.start_ns <= child.start_ns <= child.end_ns <= parent.end_ns
    sent = parse_traceparent(child.traceparent)
    assert sent == TraceContext(parent.trace_id, child.span_id, True)


def test_a_span_starts_when_its_work_started() -> None:
    recorder = SpanRecorder()
    before = time.time_ns()
    span = begun(recorder, start_ns=before - 60 * 10**9)
    span.end()
    assert span.start_ns == before - 60 * 10**9
    assert span.end_ns >= before - 10**9


def test_a_span_ends_after_its_start_where_the_clock_of_its_start_is_ahead() -> None:
    ahead = time.time_ns() + 60 * 10**9
    span = begun(SpanRecorder(), start_ns=ahead)
    span.end()
    assert ahead <= span.end_ns < ahead + 59 * 10**9


def test_a_span_is_exported_only_once() -> None:
    recorder = SpanRecorder()
    span = begun(recorder)
    span.end()
    span.end()
    assert recorder.spans == [span]


def test_a_nested_span_is_a_child_of_the_span_of_the_call() -> None:
    recorder = SpanRecorder()
    parent = begun(recorder)
    with use(RequestContext(trace_id=parent.trace_id, span=parent, sampled=True)):
        with nested_span("outer") as outer, nested_span("inner", {"a": 1}) as inner:
            assert current().span is inner
        assert current().span is parent
    assert outer is not None
    assert recorder.spans == [inner, outer]
    assert [span.parent_id for span in recorder.spans] == [outer.span_id, parent.span_id]


def test_a_block_that_fails_keeps_the_type_of_the_error_only() -> None:
    recorder = SpanRecorder()
    parent = begun(recorder)
    with (
        use(RequestContext(span=parent)),
        pytest.raises(ValueError, match="secret"),
        nested_span("block"),
    ):
        raise ValueError("secret")
    [span] = recorder.spans
    assert span.error_type == "ValueError"
    assert "secret" not in repr(span.attributes)


def test_an_untraced_call_has_no_nested_spans() -> None:
    with use(RequestContext(trace_id=new_trace_id())), nested_span("block") as span:
        assert span is None
        assert current().span is None


def test_the_error_type_of_our_errors_is_their_reason() -> None:
    assert error_type(NotFoundError("no", reason=Reason.AGENT_NOT_FOUND)) == "AGENT_NOT_FOUND"
    assert error_type(UnavailableError("no", reason=Reason.UNSPECIFIED)) == "UNAVAILABLE"
    assert error_type(KeyError("x")) == "KeyError"
