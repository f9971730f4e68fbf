"""The benchmark of capacity: its queueing model, and what it reads from traces."""

from __future__ import annotations

import math

import pytest
from benchmarks.capacity.measuring import Demand, Load, rpcs_of
from benchmarks.capacity.queueing import Station, closed, response_at, servers_for
from benchmarks.capacity.report import CapacityReport, forecast
from hypothesis import given
from hypothesis import strategies as st

from doubles.otlp_collector import CollectedSpan

DEMAND = Demand(
    turn_ms={"gateway": 4.0, "recall": 3.0, "postgres": 5.0, "client": 6.0, "model": 1.0},
    background_ms={"recall": 5.0},
    response_ms=29.0,
    commits=6.0,
    flushes=5.0,
    wal_bytes=20_000.0,
)


def test_a_single_client_does_not_wait() -> None:
    result = closed([Station("a", 10.0), Station("b", 5.0, servers=4)], 5.0, 1)
    assert result.response_ms == pytest.approx(20.0)
    assert result.throughput == pytest.approx(50.0)


def test_two_clients_of_one_station_follow_the_exact_formula() -> None:
    # Balanced stations: throughput of n clients at k stations of demand d is n / (n + k - 1) / d.
    result = closed([Station("a", 10.0), Station("b", 10.0)], 0.0, 2)
    assert result.throughput == pytest.approx(2 / 3 / 10 * 1000)


@given(
    demands=st.lists(st.floats(0.1, 50.0), min_size=1, max_size=5),
    servers=st.integers(1, 8),
    delay=st.floats(0.0, 100.0),
    clients=st.integers(1, 60),
)
def test_a_throughput_stays_within_its_bounds(
    demands: list[float], servers: int, delay: float, clients: int
) -> None:
    stations = [Station(str(n), demand, servers) for n, demand in enumerate(demands)]
    result = closed(stations, delay, clients)
    alone = sum(demands) + delay
    bound = min(clients * 1000 / alone, min(station.capacity for station in stations))
    assert result.throughput <= bound * (1 + 1e-9)
    assert result.throughput * result.response_ms == pytest.approx(clients * 1000)


def test_open_arrivals_at_one_server_follow_the_formula_of_the_mm1_queue() -> None:
    response = response_at([Station("a", 10.0)], 0.0, 50.0)
    assert response.mean_ms == pytest.approx(20.0)
    # The time in an M/M/1 queue is exponential; the approximation is within 2 %.
    assert response.p95_ms == pytest.approx(-math.log(0.05) * 20.0, rel=0.02)


def test_open_arrivals_at_two_servers_wait_as_in_erlangs_tables() -> None:
    # Offered load 1 at two servers: a third of the arrivals wait.
    response = response_at([Station("a", 10.0, servers=2)], 0.0, 100.0)
    assert response.mean_ms == pytest.approx(10.0 + (1 / 3) * 10.0)


def test_a_saturated_station_has_no_response_time() -> None:
    assert response_at([Station("a", 10.0)], 1.0, 100.0).mean_ms == math.inf


def test_servers_are_rounded_up_and_at_least_one() -> None:
    assert servers_for({"a": 7.0, "b": 0.0}, 101.0, 0.7) == {"a": 2, "b": 1}


def test_more_replicas_move_the_bottleneck_to_postgresql() -> None:
    assert forecast(DEMAND, [], 1).bottleneck == "recall"
    many = forecast(DEMAND, [], 64)
    assert many.bottleneck == "postgres"
    assert many.capacity == pytest.approx(16 / 0.005)


def test_own_time_of_an_rpc_excludes_its_statements_and_calls() -> None:
    spans = [
        _span("1", "", "strata.api.gateway.v1.RunService/SendMessage", "SERVER", 0, 100),
        _span("2", "1", "invoke_agent", "INTERNAL", 10, 90),
        # Two waits overlap, and one is beneath an internal span.
        _span("3", "2", "SELECT", "CLIENT", 20, 50),
        _span("4", "2", "strata.api.recall.v1.WindowService/BeginTurn", "CLIENT", 40, 60),
        _span("5", "4", "strata.api.recall.v1.WindowService/BeginTurn", "SERVER", 41, 59, "recall"),
        _span("9", "", "strata.api.gateway.v1.AdminService/WhoAmI", "SERVER", 0, 5, trace="other"),
    ]
    send, begin = rpcs_of(spans, turns=1)
    assert (send.service, send.method) == ("gateway", "RunService/SendMessage")
    assert (send.total_ms, send.own_ms) == (100.0, 60.0)
    assert (begin.service, begin.method, begin.own_ms) == (
        "recall",
        "WindowService/BeginTurn",
        18.0,
    )


def test_the_document_states_prediction_error_and_sizes() -> None:
    load = Load(replicas=2, clients=8, turns=100, throughput=50.0, median_ms=150.0, p95_ms=200.0)
    machine: dict[str, str | float | int] = {
        "cores": 2, "memory_gb": 8.0, "system": "Linux", "python": "3.11",
    }  # fmt: skip
    text = CapacityReport(DEMAND, [], [load], 0.02, machine).document()
    # 19 ms of processor time on two processors: 105 turns a second at most.
    assert "| 2 | 8 | 105.2 turns/s | 50.0 turns/s | +110% | 150 ms, p95 200 ms |" in text
    assert "| recall | 2 | 12 | 115 |" in text
    assert "client" not in text.partition("## Sizes")[2].partition("## The first")[0]


def _span(
    span_id: str, parent: str, name: str, kind: str, start_ms: int, end_ms: int,
    service: str = "gateway", trace: str = "t",
) -> CollectedSpan:  # fmt: skip
    return CollectedSpan(
        service, name, kind, trace, span_id, parent, start_ms * 10**6, end_ms * 10**6, {}, False
    )
