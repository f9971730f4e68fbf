"""What is measured of the calls of a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ModelEvent,
    ModelReply,
    ModelRequest,
    TextDelta,
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
from strata.shared.usage import Usage

USAGE = Usage(100, 20, cached_input_tokens=60, reasoning_tokens=5)
REPLY = ModelReply((), (), FinishReason.STOP, USAGE)
LABELS = {"provider": "openai", "model": "openai/x"}
REQUEST: Any = object()


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
    return MeteredModel(model, ModelMetrics(telemetry, LABELS)), telemetry


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
async def test_a_call_whose_reader_leaves_is_cancelled_unless_its_reply_was_read(
    events: tuple[ModelEvent, ...], outcome: str
) -> None:
    model, telemetry = metered(Scripted(*events, error=AssertionError("read too far")))
    async with aclosing(model.stream(REQUEST)) as stream:
        await anext(stream)
    assert telemetry.total(MODEL_CALLS, outcome=outcome) == telemetry.total(MODEL_CALLS) == 1


async def test_requests_that_are_sent_again_are_counted() -> None:
    telemetry = Telemetry()
    policy = RetryPolicy(on_retry=ModelMetrics(telemetry, LABELS).note_retry).hurried()
    failing = Scripted(error=ModelError(ModelErrorKind.UNAVAILABLE, "Away."))
    with pytest.raises(ModelError):
        async for _ in retrying(
            lambda: failing.stream(REQUEST), policy, sleep=lambda _: asyncio.sleep(0)
        ):
            pass
    # Two requests, of which the second is the retry.
    assert telemetry.total(MODEL_RETRIES, error="unavailable", **LABELS) == 1


def test_models_share_a_label_beyond_a_number() -> None:
    labels = ModelLabels()
    handles = [f"openai/{number}" for number in range(MAX_MODEL_LABELS + 5)]
    seen = [labels.of(handle) for handle in handles]
    assert [label["model"] for label in seen[:MAX_MODEL_LABELS]] == handles[:MAX_MODEL_LABELS]
    assert {label["model"] for label in seen[MAX_MODEL_LABELS:]} == {OTHER_MODELS}
    assert {label["provider"] for label in seen} == {"openai"}
    assert labels.of(handles[0])["model"] == handles[0]
