"""Serves the metrics of a process in the formats of Prometheus, on a separate port.

A request reads the metrics in memory. No work is done between requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from operator import attrgetter

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from strata.shared.http_listener import Application, HttpListener, Receive, Scope, Send
from strata.shared.metric_names import PARTITION_LABEL, MetricDefinition, MetricKind
from strata.shared.settings import ServiceSettings
from strata.shared.telemetry import Gauge, Histogram, ReadGauge, Sample, Telemetry

METRICS_PATH = "/metrics"
HEALTH_PATH = "/healthz"

_TEXT = "text/plain; charset=utf-8"


class TelemetryCollector(Collector):
    """The metrics of a registry, and the usual process metrics of Prometheus.

    Create it in the event loop, whose state some gauges read; `collect` may run in a thread.
    Histograms without observations are left out: most methods of a service are never called.

    Args:
        telemetry: The registry.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._definitions = telemetry.definitions
        self._samples = [_read(sample) for sample in telemetry.samples()]

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics by name."""
        samples = sorted(self._samples, key=attrgetter("name"))
        for name, group in groupby(samples, key=attrgetter("name")):
            yield _family(self._definitions[name], group)
        yield from ProcessCollector(registry=None).collect()


def _read(sample: Sample) -> Sample:
    """Returns a sample whose gauge has its present value."""
    if not isinstance(sample.metric, ReadGauge):
        return sample
    gauge = Gauge()
    gauge.set(sample.metric.value)
    return replace(sample, metric=gauge)


def _family(definition: MetricDefinition, samples: Iterable[Sample]) -> Metric:
    name, text, samples = definition.name, definition.help, tuple(samples)
    labels = list(definition.labels)
    if any(PARTITION_LABEL in sample.labels for sample in samples):
        labels.append(PARTITION_LABEL)
    if definition.kind is MetricKind.HISTOGRAM:
        histograms = HistogramMetricFamily(name, text, labels=labels)
        for sample in samples:
            if isinstance(sample.metric, Histogram) and sample.metric.count:
                histograms.add_metric(
                    _values(labels, sample), _buckets(sample.metric), sample.metric.sum
                )
        return histograms
    family_type = (
        CounterMetricFamily if definition.kind is MetricKind.COUNTER else GaugeMetricFamily
    )
    family = family_type(name, text, labels=labels)
    for sample in samples:
        if not isinstance(sample.metric, Histogram):
            family.add_metric(_values(labels, sample), sample.metric.value)
    return family


def _values(labels: Sequence[str], sample: Sample) -> list[str]:
    # A service with one partition, in the same process, has no label for it.
    return [sample.labels.get(label, "") for label in labels]


def _buckets(histogram: Histogram) -> Sequence[tuple[str, float]]:
    """Returns the upper bounds, each with the number of observations up to it."""
    bounds = (*map(str, histogram.bounds), "+Inf")
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


def metrics_application(telemetry: Telemetry, is_serving: Callable[[], bool]) -> Application:
    """Returns the ASGI application of the port: ``/metrics`` and ``/healthz``.

    Args:
        telemetry: The metrics.
        is_serving: Whether the service accepts calls; False is the status 503 of ``/healthz``.
    """

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in {"GET", "HEAD"}:
            await _respond(send, 405, b"only GET and HEAD\n", _TEXT, (b"allow", b"GET, HEAD"))
        elif scope["path"] == METRICS_PATH:
            encode, content_type = choose_encoder(_header(scope, b"accept"))
            # Writing some thousand lines takes as long as several turns of the event loop.
            body = await asyncio.to_thread(encode, TelemetryCollector(telemetry))
            await _respond(send, 200, body, content_type)
        elif scope["path"] == HEALTH_PATH:
            serving = is_serving()
            text = b"SERVING\n" if serving else b"NOT_SERVING\n"
            await _respond(send, 200 if serving else 503, text, _TEXT)
        else:
            await _respond(send, 404, f"only {METRICS_PATH} and {HEALTH_PATH}\n".encode(), _TEXT)

    return application


def metrics_listener(
    settings: ServiceSettings, telemetry: Telemetry, is_serving: Callable[[], bool]
) -> HttpListener:
    """Returns the listener of the metrics port of a service.

    Args:
        settings: Settings of the service, with a `metrics_port`.
        telemetry: The metrics.
        is_serving: Whether the service accepts calls.
    """
    return HttpListener(
        lambda _: metrics_application(telemetry, is_serving),
        settings.metrics_host or settings.tcp_host,
        settings.metrics_port or 0,
    )


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def _respond(
    send: Send, status: int, body: bytes, content_type: str, *more: tuple[bytes, bytes]
) -> None:
    headers = [
        *more,
        (b"content-type", content_type.encode("ascii")),
        (b"content-length", str(len(body)).encode("ascii")),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    # The server sends no body in response to HEAD.
    await send({"type": "http.response.body", "body": body})
