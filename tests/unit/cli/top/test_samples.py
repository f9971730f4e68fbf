"""Rates and percentiles between two readings of metrics."""

from __future__ import annotations

import pytest

from strata.cli.top.samples import Interval, Reading, parse_samples, quantile, read_targets
from strata.standalone.ports import ReservedPort

BEFORE = """\
# TYPE calls_total counter
calls_total{method="a",code="OK"} 10
calls_total{method="a",code="INTERNAL"} 1
# TYPE waiting gauge
waiting{index="m"} 5
# TYPE seconds histogram
seconds_bucket{le="0.1"} 100
seconds_bucket{le="1.0"} 100
seconds_bucket{le="+Inf"} 100
"""
AFTER = """\
# TYPE calls_total counter
calls_total{method="a",code="OK"} 30
calls_total{method="a",code="INTERNAL"} 1
calls_total{method="b",code="OK"} 4
# TYPE waiting gauge
waiting{index="m"} 7
# TYPE seconds histogram
seconds_bucket{le="0.1"} 105
seconds_bucket{le="1.0"} 110
seconds_bucket{le="+Inf"} 110
"""


def interval(*pairs: tuple[str, str], seconds: float = 2.0) -> Interval:
    before = [Reading("a", 10.0, parse_samples(text)) for text, _ in pairs]
    after = [Reading("a", 10.0 + seconds, parse_samples(text)) for _, text in pairs]
    return Interval(before, after)


def test_counters_are_rates_of_the_interval() -> None:
    read = interval((BEFORE, AFTER))
    assert read.rates("calls_total", "method") == {("a",): 10.0, ("b",): 2.0}
    assert read.rates("calls_total", code="INTERNAL") == {(): 0.0}


def test_ports_are_summed_and_gauges_of_replicas_are_not() -> None:
    read = interval((BEFORE, AFTER), (BEFORE, AFTER))
    assert read.rates("calls_total", "method") == {("a",): 20.0, ("b",): 4.0}
    assert read.present("waiting", "index") == {("m",): 14.0}
    assert read.highest("waiting", "index") == {("m",): 7.0}


def test_counters_of_a_restarted_process_start_at_zero() -> None:
    assert interval((AFTER, BEFORE)).rates("calls_total", "method") == {("a",): 5.0}


def test_a_port_without_a_previous_reading_has_no_rates() -> None:
    read = interval(("", AFTER))
    assert read.rates("calls_total", "method") == {("a",): 0.0, ("b",): 0.0}
    assert read.present("waiting") == {(): 7.0}
    assert read.quantiles("seconds", 0.5) == {}


def test_a_port_without_a_current_reading_is_omitted() -> None:
    assert interval((BEFORE, "")).rates("calls_total") == {}


def test_percentiles_are_those_of_the_interval() -> None:
    read = interval((BEFORE, AFTER))
    # Five of the ten new values are below 0.1, the others are spread between 0.1 and 1.
    assert read.quantiles("seconds", 0.5) == {(): pytest.approx(0.1)}
    assert read.quantiles("seconds", 0.75) == {(): pytest.approx(0.55)}
    assert interval((AFTER, AFTER)).quantiles("seconds", 0.5) == {}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({1.0: 0.0, float("inf"): 0.0}, None),
        ({}, None),
        ({1.0: 4.0, float("inf"): 4.0}, 0.95),
        # Values above the last bound are unknown.
        ({1.0: 0.0, float("inf"): 4.0}, 1.0),
    ],
)
def test_quantiles_are_interpolated_within_buckets(
    counts: dict[float, float], expected: float | None
) -> None:
    assert quantile(counts, 0.95) == (None if expected is None else pytest.approx(expected))


async def test_a_port_without_a_server_is_named() -> None:
    with ReservedPort() as port:
        target = f"http://127.0.0.1:{port.number}"
        [reading] = await read_targets([target])
    assert (reading.target, reading.samples) == (target, {})
    assert reading.problem.startswith("does not answer")
