"""Measures and traces the calls of a chat model: time, first event, tokens, outcome, retries."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from strata.agent_loop.domain.model.chat import (
    ChatModel,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    UsageEvent,
)
from strata.agent_loop.domain.model.errors import ModelError
from strata.agent_loop.models.chat_spans import begin_chat_span, end_chat_span, note_reply
from strata.shared.context import current
from strata.shared.logs import get_logger
from strata.shared.metric_names import (
    MODEL_CALL_SECONDS,
    MODEL_CALLS,
    MODEL_FIRST_EVENT_SECONDS,
    MODEL_RETRIES,
    MODEL_TOKENS,
)
from strata.shared.telemetry import Counter, Telemetry
from strata.shared.usage import COUNTS, Usage

MAX_MODEL_LABELS: Final = 100
"""Maximum number of models with their own label.

Clients choose the models of agents, and a provider without a list of models accepts any name.
"""
OTHER_MODELS: Final = "other"
"""Label of all further models."""

SLOW_CALL_S: Final = 60.0
"""Seconds from which on a call is slow, if the settings do not say so."""

_OK = "ok"
_CANCELLED = "cancelled"
_DEFECT = "internal"

_log = get_logger(__name__)


class ModelLabels:
    """The labels of models: provider and handle.

    Args:
        most: Handles that are labels; further ones share a label per provider.
    """

    def __init__(self, most: int = MAX_MODEL_LABELS) -> None:
        self._most = most
        self._handles: set[str] = set()

    def of(self, handle: str) -> dict[str, str]:
        """Returns the labels of a model.

        Args:
            handle: ``provider/model``; the provider is an endpoint of the settings.
        """
        if handle not in self._handles and len(self._handles) < self._most:
            self._handles.add(handle)
        is_configured = handle in self._handles
        return {
            "provider": handle.partition("/")[0],
            "model": handle if is_configured else OTHER_MODELS,
        }


class ModelMetrics:
    """The metrics of one model.

    Args:
        telemetry: Registry of the metrics.
        labels: Labels of the model, see `ModelLabels`.
    """

    def __init__(self, telemetry: Telemetry, labels: dict[str, str]) -> None:
        self._telemetry = telemetry
        self._labels = labels
        self._seconds = telemetry.histogram(MODEL_CALL_SECONDS, **labels)
        self._first_event = telemetry.histogram(MODEL_FIRST_EVENT_SECONDS, **labels)
        # Made at the first call: a metric without a value would be shown.
        self._tokens: dict[str, Counter] = {}

    def note_first_event(self, seconds: float) -> None:
        """Records the time until the first event of a call."""
        self._first_event.observe(seconds)

    def note_usage(self, usage: Usage) -> None:
        """Counts the tokens of a call."""
        if not self._tokens:
            self._tokens = {
                count: self._telemetry.counter(
                    MODEL_TOKENS, kind=count.removesuffix("_tokens"), **self._labels
                )
                for count in COUNTS
            }
        for count, counter in self._tokens.items():
            counter.inc(getattr(usage, count))

    def note_retry(self, error: ModelError) -> None:
        """Counts a request that is sent again after an error."""
        self._telemetry.counter(MODEL_RETRIES, error=error.kind.value, **self._labels).inc()

    def note_end(self, outcome: str, seconds: float) -> None:
        """Counts the end of a call."""
        self._telemetry.counter(MODEL_CALLS, outcome=outcome, **self._labels).inc()
        self._seconds.observe(seconds)


class MeteredModel:
    """Measures and traces the calls of a model, and logs the slow and the failed ones.

    Implements `ChatModel`.

    Args:
        model: The model.
        metrics: Its metrics.
        settings: Its settings, for the spans and the log.
        slow_s: Seconds from which on a call is logged as slow.
    """

    def __init__(
        self,
        model: ChatModel,
        metrics: ModelMetrics,
        settings: ModelSettings,
        *,
        slow_s: float = SLOW_CALL_S,
    ) -> None:
        self._model = model
        self._metrics = metrics
        self._settings = settings
        self._slow_s = slow_s

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `ChatModel.stream`."""
        metrics, started = self._metrics, time.perf_counter()
        span = begin_chat_span(current().span, self._settings, request)
        first_event_s: float | None = None
        # The caller leaves the iteration if it is cancelled.
        outcome, status, code = _CANCELLED, None, None
        try:
            async with aclosing(self._model.stream(request)) as events:
                async for event in events:
                    if first_event_s is None:
                        first_event_s = time.perf_counter() - started
                        metrics.note_first_event(first_event_s)
                    if isinstance(event, UsageEvent):
                        metrics.note_usage(event.usage)
                    elif isinstance(event, ModelReply):
                        outcome = _OK
                        note_reply(span, event)
                    yield event
        except ModelError as error:
            outcome, status, code = error.kind.value, error.status, error.code
            raise
        except Exception:
            outcome = _DEFECT
            raise
        finally:
            seconds = time.perf_counter() - started
            metrics.note_end(outcome, seconds)
            end_chat_span(span, "" if outcome == _OK else outcome)
            failed = outcome not in {_OK, _CANCELLED}
            if failed or seconds >= self._slow_s:
                # The text of the error is left out: providers may repeat the request in it.
                _log.warning(
                    "model call failed" if failed else "model call was slow",
                    model=self._settings.handle,
                    outcome=outcome,
                    status=status,
                    code=code,
                    duration_ms=round(seconds * 1000),
                    first_event_ms=None if first_event_s is None else round(first_event_s * 1000),
                )
