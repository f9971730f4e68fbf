"""Converts the explanation of a run to protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.runs.convert.runs import run_to_pb
from strata.gateway.runs.domain.runs import Run
from strata.gateway.runs.explanation.prices import ModelPrice
from strata.gateway.runs.explanation.spans import (
    ExplainedStep,
    KindTotal,
    RunSpan,
    RunSpanKind,
    SpanBuilder,
    parts_of,
)
from strata.shared.convert.usage import usage_to_proto
from strata.shared.usage import Usage

MAX_SPANS = 5000
_MAX_TOOLS = 32

Prices = Mapping[str, ModelPrice]


def explanation_to_pb(run: Run, explanation: SpanBuilder, prices: Prices) -> pb.ExplainRunResponse:
    """Converts an explanation.

    Args:
        run: The run.
        explanation: Its explanation.
        prices: Prices of tokens by model handle.
    """
    spans = explanation.spans
    return pb.ExplainRunResponse(
        run=run_to_pb(run),
        spans=(_span_to_pb(run, span, prices) for span in spans[:MAX_SPANS]),
        parts=map(_part_to_pb, explanation.parts),
        total_ms=explanation.total_ms,
        cost_micros=_cost(spans, prices),
        truncated=len(spans) > MAX_SPANS,
        models=_models_to_pb(spans, prices),
    )


def step_to_pb(run: Run, step: ExplainedStep, prices: Prices) -> pb.RunStep:
    """Converts a step; see `explanation_to_pb`."""
    calls = [span for span in step.spans if span.kind is RunSpanKind.MODEL]
    tools = [span.name for span in step.spans if span.kind is RunSpanKind.TOOL]
    out = pb.RunStep(
        step=step.number,
        step_id=step.step_id,
        # The last call returned the reply of the step.
        model=calls[-1].name if calls else "",
        attempt=step.spans[-1].attempt,
        share_ms=sum(span.share_ms for span in step.spans),
        parts=map(_part_to_pb, parts_of(step.spans)),
        model_calls=len(calls),
        first_token_ms=calls[-1].first_token_ms if calls else None,
        usage=usage_to_proto(sum((span.usage for span in step.spans if span.usage), Usage())),
        cost_micros=_cost(step.spans, prices),
        tools=tools[:_MAX_TOOLS],
    )
    out.start_time.FromDatetime(_time(run, step.spans[0]))
    return out


def _span_to_pb(run: Run, span: RunSpan, prices: Prices) -> pb.RunSpan:
    duration_ms = span.share_ms if span.duration_ms is None else span.duration_ms
    out = pb.RunSpan(
        kind=span.kind,
        name=span.name,
        step=span.step,
        duration_ms=duration_ms,
        usage=None if span.usage is None else usage_to_proto(span.usage),
        note=span.note,
        share_ms=span.share_ms,
        attempt=span.attempt,
        first_token_ms=span.first_token_ms,
        status=span.status,
        tool_call_id=span.tool_call_id,
        cost_micros=_cost([span], prices),
    )
    out.start_time.FromDatetime(_time(run, span))
    return out


def _models_to_pb(spans: Iterable[RunSpan], prices: Prices) -> list[pb.ModelUsage]:
    by_model: dict[str, list[RunSpan]] = {}
    for span in spans:
        if span.usage is not None:
            by_model.setdefault(span.model, []).append(span)
    return [
        pb.ModelUsage(
            model=model,
            calls=sum(span.calls for span in called),
            usage=usage_to_proto(sum((span.usage for span in called if span.usage), Usage())),
            cost_micros=_cost(called, prices),
        )
        for model, called in by_model.items()
    ]


def _part_to_pb(part: KindTotal) -> pb.RunPart:
    return pb.RunPart(kind=part.kind, count=part.count, share_ms=part.share_ms)


def _time(run: Run, span: RunSpan) -> datetime:
    return run.create_time + timedelta(milliseconds=span.start_ms)


def _cost(spans: Iterable[RunSpan], prices: Prices) -> int | None:
    """Returns the cost of the tokens of spans in millionths; None if no model has a price."""
    costs = [
        prices[span.model].micros(span.usage)
        for span in spans
        if span.usage is not None and span.model in prices
    ]
    return sum(costs) if costs else None
