"""The metrics as Prometheus reads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.openmetrics import parser as openmetrics

from promtool import needs_promtool, run_promtool
from scraping import Scrape
from strata.shared.metric_names import (
    METRICS,
    RPC_IN_FLIGHT,
    RPC_REQUESTS,
    RPC_SECONDS,
    MetricKind,
)
from strata.shared.metrics_endpoint import metrics_application
from strata.shared.telemetry import Telemetry

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def answer(
    telemetry: Telemetry,
    path: str = "/metrics",
    *,
    method: str = "GET",
    serving: bool = True,
    accept: str = "",
) -> httpx2.Response:
    application: Any = metrics_application(telemetry, lambda: serving)
    transport = httpx2.ASGITransport(application)
    async with httpx2.AsyncClient(transport=transport, base_url="http://strata") as client:
        return await client.request(method, path, headers={"accept": accept})


@pytest.fixture
def telemetry() -> Telemetry:
    """A registry with one metric of each kind, and a histogram without observations."""
    made = Telemetry()
    made.counter(RPC_REQUESTS, method="/a/B", code="OK").inc(3)
    made.counter(RPC_REQUESTS, method='/a/"C"\n', code="INTERNAL").inc()
    made.gauge(RPC_IN_FLIGHT, method="/a/B").add(2)
    seconds = made.histogram(RPC_SECONDS, method="/a/B")
    for value in (0.0004, 0.02, 0.02, 500.0):
        seconds.observe(value)
    made.histogram(RPC_SECONDS, method="/never/called")
    return made


async def test_prometheus_reads_the_values(telemetry: Telemetry) -> None:
    response = await answer(telemetry)
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    read = Scrape(response.text)
    assert read.total(RPC_REQUESTS, method="/a/B", code="OK") == 3
    assert read.total(RPC_REQUESTS, method='/a/"C"\n', code="INTERNAL") == 1
    assert read.total(RPC_IN_FLIGHT, method="/a/B") == 2
    assert read.total(f"{RPC_SECONDS}_count", method="/a/B") == 4
    assert read.total(f"{RPC_SECONDS}_sum", method="/a/B") == pytest.approx(500.0404)
    counts = {
        float(sample.labels["le"]): sample.value
        for sample in read.matching(f"{RPC_SECONDS}_bucket", method="/a/B")
    }
    assert set(counts) == {*METRICS[RPC_SECONDS].buckets, math.inf}
    assert (counts[0.0005], counts[0.01], counts[0.025], counts[120.0]) == (1, 1, 3, 3)
    assert counts[math.inf] == 4
    assert not list(read.matching(f"{RPC_SECONDS}_count", method="/never/called"))


async def test_types_and_help_texts_match_the_definitions(telemetry: Telemetry) -> None:
    read = Scrape((await answer(telemetry)).text)
    for name in (RPC_REQUESTS, RPC_IN_FLIGHT, RPC_SECONDS):
        family = read.families[name.removesuffix("_total")]
        assert family.type == METRICS[name].kind
        assert family.documentation == METRICS[name].help


async def test_the_process_is_measured_too() -> None:
    read = Scrape((await answer(Telemetry())).text)
    assert read.total("process_resident_memory_bytes") > 2**20
    assert read.total("process_open_fds") > 0


async def test_openmetrics_is_served_to_clients_that_accept_it(telemetry: Telemetry) -> None:
    response = await answer(telemetry, accept=OPENMETRICS)
    assert response.headers["content-type"].startswith(OPENMETRICS)
    parsed: Any = openmetrics.text_string_to_metric_families(response.text)  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parsed}
    assert families["strata_rpc_requests"].type == MetricKind.COUNTER
    assert families[RPC_SECONDS].type == MetricKind.HISTOGRAM


@pytest.fixture
def every_metric() -> Telemetry:
    """A registry with one value of every metric that there is."""
    made = Telemetry()
    for name, metric in METRICS.items():
        labels = dict.fromkeys(metric.labels, "a")
        match metric.kind:
            case MetricKind.COUNTER:
                made.counter(name, **labels).inc()
            case MetricKind.GAUGE:
                made.gauge(name, **labels).set(1)
            case MetricKind.HISTOGRAM:
                made.histogram(name, **labels).observe(1)
    return made


@needs_promtool
@pytest.mark.child_process
async def test_promtool_reports_no_problem(every_metric: Telemetry, tmp_path: Path) -> None:
    served = (await answer(every_metric)).content
    assert all(f"# TYPE {name} ".encode() in served for name in METRICS)
    assert not run_promtool("check", "metrics", folder=tmp_path, stdin=served)


@pytest.mark.parametrize(("serving", "status"), [(True, 200), (False, 503)])
async def test_the_health_endpoint_reports_the_state_of_the_service(
    serving: bool, status: int
) -> None:
    response = await answer(Telemetry(), "/healthz", serving=serving)
    assert response.status_code == status
    assert response.text == ("SERVING\n" if serving else "NOT_SERVING\n")


async def test_other_paths_and_methods_are_refused() -> None:
    assert (await answer(Telemetry(), "/")).status_code == 404
    refused = await answer(Telemetry(), method="POST")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
