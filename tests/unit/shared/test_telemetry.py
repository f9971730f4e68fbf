"""Metrics in memory."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strata.shared.metric_names import METRICS, MetricDefinition, MetricKind
from strata.shared.telemetry import Telemetry

DEFINITIONS = {
    definition.name: definition
    for definition in (
        MetricDefinition("calls", MetricKind.COUNTER, "Calls.", ("method", "code")),
        MetricDefinition("open", MetricKind.GAUGE, "Open calls."),
        MetricDefinition("seconds", MetricKind.HISTOGRAM, "Time.", buckets=(0.5, 1.0)),
    )
}


def test_metrics_are_kept_by_name_and_labels() -> None:
    telemetry = Telemetry(DEFINITIONS)
    telemetry.counter("calls", method="a", code="OK").inc()
    telemetry.counter("calls", code="OK", method="a").inc(2)
    telemetry.counter("calls", method="b", code="OK").inc()
    telemetry.gauge("open").add(3)
    telemetry.gauge("open").add(-1)
    assert telemetry.total("calls", method="a") == 3
    assert telemetry.total("calls") == 4
    assert telemetry.total("calls", method="c") == 0
    assert telemetry.total("open") == 2
    assert len(list(telemetry.samples())) == 3


def test_a_histogram_counts_values_by_upper_bound() -> None:
    histogram = Telemetry(DEFINITIONS).histogram("seconds")
    for value in (0.0, 0.5, 0.6, 1000.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1]
    assert histogram.count == 4
    assert histogram.sum == pytest.approx(1001.1)


def test_a_gauge_can_be_computed_when_it_is_read() -> None:
    telemetry = Telemetry(DEFINITIONS)
    held = [1]
    telemetry.read_gauge("open", lambda: len(held))
    assert telemetry.total("open") == 1
    held.append(2)
    assert telemetry.total("open") == 2
    telemetry.read_gauge("open", lambda: 7)
    assert telemetry.total("open") == 7
    with pytest.raises(TypeError, match="open is a ReadGauge"):
        telemetry.gauge("open")


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda telemetry: telemetry.counter("calsl"), "calsl is not defined"),
        (
            lambda telemetry: telemetry.gauge("calls", method="a", code="b"),
            "counter, not a gauge",
        ),
        (lambda telemetry: telemetry.counter("calls", method="a"), "has the labels"),
        (
            lambda telemetry: telemetry.counter("calls", method="a", code="b", run="c"),
            "has the lab",
        ),
        (lambda telemetry: telemetry.read_gauge("seconds", lambda: 1), "a histogram, not a gauge"),
    ],
)
def test_a_metric_is_used_as_it_is_defined(use: Any, message: str) -> None:
    telemetry = Telemetry(DEFINITIONS)
    with pytest.raises(ValueError, match=message):
        use(telemetry)
    assert list(telemetry.samples()) == []


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"strata(_[a-z]+)+", name), name
        assert name.endswith("_total") == (metric.kind is MetricKind.COUNTER), name
        assert (metric.kind is MetricKind.HISTOGRAM) == bool(metric.buckets), name
        # All histograms are times.
        assert not metric.buckets or name.endswith("_seconds"), name
        assert metric.help.endswith("."), name
        assert list(metric.buckets) == sorted(set(metric.buckets)), name


def test_no_label_can_contain_an_id() -> None:
    labels = {label for metric in METRICS.values() for label in metric.labels}
    assert labels == {
        "code", "collection", "error", "isolation", "kind", "method", "model", "outcome", "peer",
        "provider", "role", "service", "status", "stop_reason", "summary", "tool", "type",
    }  # fmt: skip
