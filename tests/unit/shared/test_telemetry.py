"""Trace context and metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.telemetry import Telemetry, make_traceparent, new_trace_id, parse_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", TRACE),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", TRACE),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        ("", None),
        (None, None),
        (b"00", None),
    ],
)
def test_traceparent_is_read_as_specified(header: str | bytes | None, expected: str | None) -> None:
    assert parse_traceparent(header) == expected


@given(st.integers())
def test_sent_trace_ids_can_be_read(_: int) -> None:
    trace_id = new_trace_id()
    assert parse_traceparent(make_traceparent(trace_id)) == trace_id


def test_every_hop_is_a_new_span() -> None:
    assert make_traceparent(TRACE) != make_traceparent(TRACE)


def test_metrics_are_kept_by_name_and_labels() -> None:
    telemetry = Telemetry()
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


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Telemetry().histogram("seconds")
    for value in (0.0, 0.0005, 0.0006, 1000.0):
        histogram.observe(value)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-1] == 1
    assert histogram.count == 4
    assert histogram.sum == pytest.approx(1000.0011)


def test_a_name_has_one_kind() -> None:
    telemetry = Telemetry()
    telemetry.counter("calls")
    with pytest.raises(TypeError, match="calls is a Counter"):
        telemetry.gauge("calls")
