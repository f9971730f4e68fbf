"""The trace of a run: one from its acceptance to its end, whichever gateways execute it."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta

from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.convert import runs as convert
from strata.gateway.runs.domain.runs import Dispatch, NewRun, Run, is_group
from strata.shared.context import RequestContext, current
from strata.shared.record_fields import replace
from strata.shared.tracing.spans import Span, SpanKind, Tracer
from strata.shared.tracing.trace_context import make_traceparent, new_trace_id, parse_traceparent

_SERVICE = "gateway"
_EPOCH = datetime.fromtimestamp(0, UTC)
_DIGITS = re.compile(r"[0-9a-f]{32}")


class RunTraces:
    """Begins and ends the spans of runs.

    A run is a part of the trace of the call that starts it. A run that no call starts, or that
    starts later, has a separate trace, whose id is made from the run's. The id of the run's own
    span is made from the run's id as well, so that the spans of all attempts are under one span,
    which the gateway exports that ends the run.

    Args:
        tracer: Begins the spans; None if traces are off.
    """

    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer

    def mark(self, new: NewRun) -> NewRun:
        """Returns a run to accept with the span of the call being served.

        Its hash stays the same: a repeated request is another call.
        """
        context = current()
        if self._tracer is None or not context.trace_id or new.run_at is not None:
            return new
        span_id = "" if context.span is None else context.span.span_id
        traceparent = make_traceparent(context.trace_id, span_id, sampled=context.sampled)
        return replace(new, payload=convert.traced(new.payload, traceparent))

    def context(self, dispatch: Dispatch, context: RequestContext) -> RequestContext:
        """Returns the context of a run with its trace and span.

        Args:
            dispatch: The run.
            context: Its context without them.
        """
        tracer, run = self._tracer, dispatch.run
        if tracer is None:
            return replace(context, trace_id=new_trace_id())
        digits = _digits(run.id)
        parent = parse_traceparent(convert.traceparent_of(dispatch.payload))
        trace = tracer.join(parent, trace_id=digits)
        of_group = is_group(run.agent_id)
        span = tracer.begin(
            _SERVICE,
            "invoke_workflow" if of_group else "invoke_agent",
            SpanKind.INTERNAL,
            trace,
            span_id=digits[16:],
            start_ns=_start_ns(run),
            attributes={
                "gen_ai.operation.name": "invoke_workflow" if of_group else "invoke_agent",
                "strata.group.id" if of_group else "gen_ai.agent.id": run.agent_id,
                "gen_ai.conversation.id": run.conversation_id,
                "strata.project.id": run.project_id,
                "strata.run.id": run.id,
                "strata.run.kind": run.kind.value.lower(),
                "strata.run.attempt": run.attempt,
            },
        )
        return replace(context, trace_id=trace.trace_id, span=span, sampled=trace.sampled)


def end_run_span(span: Span | None, finished: run_event_pb2.RunFinished) -> None:
    """Ends the span of a run whose end is stored."""
    if span is None:
        return
    stop_reason, failure = convert.stop_of(finished)
    span.attributes["strata.run.stop_reason"] = stop_reason.value
    span.attributes["gen_ai.usage.input_tokens"] = finished.usage.prompt_tokens
    span.attributes["gen_ai.usage.output_tokens"] = finished.usage.completion_tokens
    if failure is not None:
        span.fail(failure.reason)
    span.end()


def _start_ns(run: Run) -> int:
    """Returns when a run could start at the earliest, Unix time in nanoseconds.

    It is the stored time, so that all attempts give the span of the run the same start.
    """
    start = run.create_time if run.run_at is None else max(run.create_time, run.run_at)
    return (start - _EPOCH) // timedelta(microseconds=1) * 1000


def _digits(run_id: str) -> str:
    """Returns the trace id of a run: the 32 hex digits of its id."""
    digits = run_id.partition("-")[2].replace("-", "")
    if _DIGITS.fullmatch(digits):
        return digits
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]
