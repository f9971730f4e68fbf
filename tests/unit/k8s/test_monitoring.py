"""The dashboard and the alert rules ask for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from promtool import needs_promtool, run_promtool
from strata.shared.metric_names import METRICS, MetricKind
from unit.k8s.manifests import MONITORING

_NAME = re.compile(r"\bstrata_[a-z_]+")
_LABELS = re.compile(r"\bby \(([^)]*)\)|([a-z_]+)(?:=~|!~|!=|=)\"")


DASHBOARD: Any = json.loads((MONITORING / "grafana-dashboard.json").read_text("utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def expressions() -> Iterator[str]:
    yield from QUERIES
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text("utf-8"))
    for group in rules["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def served_names(name: str, kind: MetricKind) -> set[str]:
    if kind is MetricKind.HISTOGRAM:
        return {f"{name}_bucket", f"{name}_count", f"{name}_sum"}
    return {name}


SERVED = {
    served: metric for name, metric in METRICS.items() for served in served_names(name, metric.kind)
}
EXPRESSIONS = [text for text in expressions() if _NAME.search(text)]


def test_there_are_expressions() -> None:
    assert len(EXPRESSIONS) > 20


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_for_metrics_and_labels_that_exist(expression: str) -> None:
    names = _NAME.findall(expression)
    assert set(names) <= SERVED.keys()
    # Prometheus itself sets the job.
    known = {"le", "job"}.union(*(SERVED[name].labels for name in names))
    used = {
        label.strip()
        for by, matched in _LABELS.findall(expression)
        for label in (by.split(",") if by else [matched])
    }
    assert used <= known


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_counters_and_buckets_are_read_as_rates(expression: str) -> None:
    for name in _NAME.findall(expression):
        if SERVED[name].kind is not MetricKind.GAUGE:
            assert re.search(rf"rate\({name}\b", expression), name


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_dashboard_reads_the_chosen_jobs_at_its_own_rate(query: str) -> None:
    # Without the job, metrics that every process has would be those of all programs.
    selected = re.findall(r'\b(?:strata|process)_[a-z_]+(\{job=~"\$job")?', query)
    assert selected
    assert all(selected), query
    assert set(re.findall(r"\[([^]]+)\]", query)) <= {"$__rate_interval"}


def test_panels_have_titles_units_and_the_chosen_data_source() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["job"]["includeAll"]
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(set(titles)) == len(titles)
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


@needs_promtool
@pytest.mark.child_process
def test_promtool_can_parse_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(QUERIES)
    ]
    groups = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups), "utf-8")
    printed = run_promtool("check", "rules", "rules.yaml", folder=tmp_path)
    assert f"{len(QUERIES)} rules found" in printed
