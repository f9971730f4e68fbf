"""Measures the calls of a chat model: time, first event, tokens, outcome and retries."""

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
    UsageEvent,
)
from strata.agent_loop.domain.model.errors import ModelError
from strata.shared.metric_names import (
    MODEL_CALL_SECONDS,
    MODEL_CALLS,
    MODEL_FIRST_EVENT_SECONDS,
    MODEL_RETRIES,
    MODEL_TOKENS,
)
from strata.shared.telemetry import Telemetry
from strata.shared.usage import COUNTS, Usage

MAX_MODEL_LABELS: Final = 100
"""Models with a label of their own. Clients choose the models of agents, and a provider without a
list of models takes any name."""
OTHER_MODELS: Final = "other"
"""Label of all further models."""

_OK = "ok"
_CANCELLED = "cancelled"
_DEFECT = "internal"


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
        known = handle in self._handles
        return {"provider": handle.partition("/")[0], "model": handle if known else OTHER_MODELS}


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

    def note_first_event(self, seconds: float) -> None:
        """Records the time until the first event of a call."""
        self._first_event.observe(seconds)

    def note_usage(self, usage: Usage) -> None:
        """Counts the tokens of a call."""
        for count in COUNTS:
            kind = count.removesuffix("_tokens")
            self._telemetry.counter(MODEL_TOKENS, kind=kind, **self._labels).inc(
                getattr(usage, count)
            )

    def note_retry(self, error: ModelError) -> None:
        """Counts a request that is sent again after an error."""
        self._telemetry.counter(MODEL_RETRIES, error=error.kind.value, **self._labels).inc()

    def note_end(self, outcome: str, seconds: float) -> None:
        """Counts the end of a call."""
        self._telemetry.counter(MODEL_CALLS, outcome=outcome, **self._labels).inc()
        self._seconds.observe(seconds)


class MeteredModel:
    """Measures the calls of a model. Implements `ChatModel`.

    Args:
        model: The model.
        metrics: Its metrics.
    """

    def __init__(self, model: ChatModel, metrics: ModelMetrics) -> None:
        self._model = model
        self._metrics = metrics

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `ChatModel.stream`."""
        metrics, started = self._metrics, time.perf_counter()
        is_first = True
        # The caller leaves the iteration if it is cancelled.
        outcome = _CANCELLED
        try:
            async with aclosing(self._model.stream(request)) as events:
                async for event in events:
                    if is_first:
                        is_first = False
                        metrics.note_first_event(time.perf_counter() - started)
                    if isinstance(event, UsageEvent):
                        metrics.note_usage(event.usage)
                    elif isinstance(event, ModelReply):
                        outcome = _OK
                    yield event
        except ModelError as error:
            outcome = error.kind.value
            raise
        except Exception:
            outcome = _DEFECT
            raise
        finally:
            metrics.note_end(outcome, time.perf_counter() - started)
