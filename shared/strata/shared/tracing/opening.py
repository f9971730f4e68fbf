"""Enables traces for a process if they are configured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from strata.shared.telemetry import Telemetry
from strata.shared.tracing.settings import TraceSettings
from strata.shared.tracing.spans import Tracer


@asynccontextmanager
async def open_telemetry(settings: TraceSettings) -> AsyncIterator[Telemetry]:
    """Yields the metrics and the tracer of a process; at the end the last spans are sent.

    Args:
        settings: Settings of traces. Without an endpoint nothing of OpenTelemetry is loaded.
    """
    telemetry = Telemetry()
    if not settings.url:
        yield telemetry
        return
    from strata.shared.tracing.otlp import OtlpSink  # noqa: PLC0415 - loads the SDK

    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    sink = OtlpSink(settings.url, headers, telemetry)
    telemetry.tracer = Tracer(sink, settings.sample_ratio)
    try:
        yield telemetry
    finally:
        await sink.close()
