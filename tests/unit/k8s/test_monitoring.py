"""The dashboard and the alert rules ask for metrics and labels that exist."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from promtool import needs_promtool, run_promtool
from strata.shared.metric_names import METRICS, MetricKind
from unit.k8s.manifests import MONITORING

_NAME = re.compile(r"\bstrata_[a-z_]+")
_MISSING = object()
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


def test_the_dashboard_and_alerts_have_expressions() -> None:
    assert len(EXPRESSIONS) > 20


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_uses_metrics_and_labels_that_exist(expression: str) -> None:
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
def test_dashboard_queries_select_the_chosen_jobs_and_rate_interval(query: str) -> None:
    # Without the job, a query would add up the process metrics of all programs.
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


def unknown_fields(document: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yields the fields of a JSON document that are missing, or have other values, in `kept`."""
    if isinstance(document, dict) and isinstance(kept, dict):
        for name, value in document.items():
            yield from unknown_fields(value, kept.get(name, _MISSING), f"{path}.{name}")
    elif isinstance(document, list) and isinstance(kept, list) and len(document) == len(kept):
        for number, (item, kept_item) in enumerate(zip(document, kept, strict=True)):
            yield from unknown_fields(item, kept_item, f"{path}[{number}]")
    elif document != kept:
        yield path


def read_by_grafana(document: Any) -> Any:
    """Returns the JSON document with only those fields that Grafana's own types have."""
    register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))


def test_every_field_of_the_dashboard_is_read_by_grafana() -> None:
    assert list(unknown_fields(DASHBOARD, read_by_grafana(DASHBOARD))) == []


def test_a_mistyped_field_of_a_dashboard_is_unknown_to_grafana() -> None:
    mistyped = copy.deepcopy(DASHBOARD)
    mistyped["panels"][0]["fieldConfig"]["defaults"]["units"] = "s"
    mistyped["panels"][1]["targets"][0]["legend"] = None
    assert list(unknown_fields(mistyped, read_by_grafana(mistyped))) == [
        ".panels[0].fieldConfig.defaults.units",
        ".panels[1].targets[0].legend",
    ]


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
