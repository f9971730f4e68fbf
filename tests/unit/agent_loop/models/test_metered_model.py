"""Metrics, spans and logs of model calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import pytest

from span_records import SpanRecorder, traced
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    FinishReason,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    TextDelta,
    TextPart,
    ToolCall,
    UsageEvent,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.metered_model import (
    MAX_MODEL_LABELS,
    OTHER_MODELS,
    MeteredModel,
    ModelLabels,
    ModelMetrics,
)
from strata.agent_loop.models.streaming import RetryPolicy, retrying
from strata.shared.metric_names import (
    MODEL_CALL_SECONDS,
    MODEL_CALLS,
    MODEL_FIRST_EVENT_SECONDS,
    MODEL_RETRIES,
    MODEL_TOKENS,
)
from strata.shared.telemetry import Telemetry
from strata.shared.tracing.spans import SpanKind
from strata.shared.usage import Usage

USAGE = Usage(100, 20, cached_input_tokens=60, reasoning_tokens=5)
REPLY = ModelReply((), (), FinishReason.STOP, USAGE)
LABELS = {"provider": "openai", "model": "openai/x"}
REQUEST = ModelRequest((ChatMessage(ChatRole.USER, (TextPart("secret message"),)),))
SETTINGS = ModelSettings(
    "openai/x", "openai", "x", api_key="secret-key", max_tokens=300, temperature=0.7
)


class Scripted:
    """A model that yields events and then fails, waits or ends."""

    def __init__(self, *events: ModelEvent, error: Exception | None = None) -> None:
        self._events = events
        self._error = error

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        for event in self._events:
            yield event
        if self._error is not None:
            raise self._error


def metered(model: Scripted) -> tuple[MeteredModel, Telemetry]:
    telemetry = Telemetry()
    return MeteredModel(model, ModelMetrics(telemetry, LABELS), SETTINGS), telemetry


async def read(model: MeteredModel) -> list[ModelEvent]:
    async with aclosing(model.stream(REQUEST)) as events:
        return [event async for event in events]


async def test_a_call_is_timed_and_its_tokens_are_counted() -> None:
    model, telemetry = metered(Scripted(TextDelta("Hi"), UsageEvent(USAGE), REPLY))
    assert await read(model) == [TextDelta("Hi"), UsageEvent(USAGE), REPLY]
    assert telemetry.total(MODEL_CALLS, outcome="ok", **LABELS) == 1
    assert telemetry.histogram(MODEL_CALL_SECONDS, **LABELS).count == 1
    assert telemetry.histogram(MODEL_FIRST_EVENT_SECONDS, **LABELS).count == 1
    kinds = ("prompt", "completion", "cached_input", "cache_write", "reasoning")
    counts = [telemetry.total(MODEL_TOKENS, kind=kind, **LABELS) for kind in kinds]
    assert counts == [100, 20, 60, 0, 5]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ModelError(ModelErrorKind.RATE_LIMITED, "Slow down."), "rate_limited"),
        (ZeroDivisionError(), "internal"),
    ],
)
async def test_a_failed_call_is_counted_by_its_error(error: Exception, outcome: str) -> None:
    model, telemetry = metered(Scripted(error=error))
    with pytest.raises(type(error)):
        await read(model)
    assert telemetry.total(MODEL_CALLS, outcome=outcome) == telemetry.total(MODEL_CALLS) == 1
    assert telemetry.histogram(MODEL_FIRST_EVENT_SECONDS, **LABELS).count == 0


@pytest.mark.parametrize(
    ("events", "outcome"), [((TextDelta("Hi"),), "cancelled"), ((REPLY, REPLY), "ok")]
)
async def test_a_call_whose_reader_leaves_counts_as_cancelled_unless_its_reply_was_complete(
    events: tuple[ModelEvent, ...], outcome: str
) -> None:
    model, telemetry = metered(Scripted(*events, error=AssertionError("read too far")))
    async with aclosing(model.stream(REQUEST)) as stream:
        await anext(stream)
    assert telemetry.total(MODEL_CALLS, outcome=outcome) == telemetry.total(MODEL_CALLS) == 1


async def test_a_call_is_a_span_with_names_and_numbers_only() -> None:
    reply = ModelReply(
        (TextPart("secret reply"),),
        (ToolCall("call-1", "secret_tool", '{"a": "secret"}'),),
        FinishReason.TOOL_CALLS,
        USAGE,
        model="x-2026",
    )
    model, _ = metered(Scripted(TextDelta("secret reply"), UsageEvent(USAGE), reply))
    recorder = SpanRecorder()
    with traced(recorder) as parent:
        await read(model)
    span = recorder.named("chat x")
    assert (span.parent_id, span.kind, span.error_type) == (parent.span_id, SpanKind.CLIENT, "")
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "x",
        "gen_ai.request.max_tokens": 300,
        "gen_ai.request.temperature": 0.7,
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.response.model": "x-2026",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "strata.model.messages": 1,
        "strata.model.tools": 0,
        "strata.model.tool_calls": 1,
    }
    assert "secret" not in recorder.texts()


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (ModelError(ModelErrorKind.RATE_LIMITED, "secret"), "rate_limited"),
        (ZeroDivisionError("secret"), "internal"),
        (None, "cancelled"),
    ],
)
async def test_a_failed_call_ends_its_span_with_the_kind_of_the_error(
    error: Exception | None, error_type: str
) -> None:
    model, _ = metered(Scripted(TextDelta("Hi"), error=error))
    recorder = SpanRecorder()
    with traced(recorder), suppress(ModelError, ZeroDivisionError):
        await read(model)
    assert recorder.named("chat x").error_type == error_type
    assert "secret" not in recorder.texts()


FAILED = ModelError(ModelErrorKind.RATE_LIMITED, "secret", status=429, code="quota")


@pytest.mark.parametrize(
    ("events", "error", "slow_s", "event", "outcome"),
    [
        ((), FAILED, 60.0, "model call failed", "rate_limited"),
        ((TextDelta("secret"),), FAILED, 0.0, "model call failed", "rate_limited"),
        ((TextDelta("secret"), REPLY), None, 0.0, "model call was slow", "ok"),
    ],
    ids=["failed", "failed and slow", "slow"],
)
async def test_a_call_that_fails_or_is_slow_is_one_line_without_its_content(
    events: tuple[ModelEvent, ...],
    error: ModelError | None,
    slow_s: float,
    event: str,
    outcome: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = ModelMetrics(Telemetry(), LABELS)
    model = MeteredModel(Scripted(*events, error=error), metrics, SETTINGS, slow_s=slow_s)
    with suppress(ModelError):
        await read(model)
    [record] = caplog.records
    line: Any = record.msg
    assert (record.levelname, line["event"], line["outcome"]) == ("WARNING", event, outcome)
    assert (line["model"], line["duration_ms"] >= 0) == ("openai/x", True)
    assert (line["first_event_ms"] is None) is (events == ())
    if error is not None:
        assert (line["status"], line["code"]) == (429, "quota")
    assert "secret" not in repr(line)


async def test_other_calls_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = metered(Scripted(TextDelta("Hi"), REPLY))
    await read(model)
    async with aclosing(model.stream(REQUEST)) as stream:
        await anext(stream)
    assert caplog.records == []


async def test_retried_requests_are_counted() -> None:
    telemetry = Telemetry()
    policy = RetryPolicy(on_retry=ModelMetrics(telemetry, LABELS).note_retry).for_fallback()
    failing = Scripted(error=ModelError(ModelErrorKind.UNAVAILABLE, "Away."))
    with pytest.raises(ModelError):
        async for _ in retrying(
            lambda: failing.stream(REQUEST), policy, sleep=lambda _: asyncio.sleep(0)
        ):
            pass
    # Two requests, of which the second is the retry.
    assert telemetry.total(MODEL_RETRIES, error="unavailable", **LABELS) == 1


def test_models_over_the_limit_share_one_label() -> None:
    labels = ModelLabels()
    handles = [f"openai/{number}" for number in range(MAX_MODEL_LABELS + 5)]
    seen = [labels.of(handle) for handle in handles]
    assert [label["model"] for label in seen[:MAX_MODEL_LABELS]] == handles[:MAX_MODEL_LABELS]
    assert {label["model"] for label in seen[MAX_MODEL_LABELS:]} == {OTHER_MODELS}
    assert {label["provider"] for label in seen} == {"openai"}
    assert labels.of(handles[0])["model"] == handles[0]
