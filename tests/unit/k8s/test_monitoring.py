"""The dashboard and the alert rules ask for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from strata.shared.metric_names import METRICS, MetricKind
from unit.k8s.manifests import K8S

MONITORING = K8S / "monitoring"
_NAME = re.compile(r"\bstrata_[a-z_]+")
_LABELS = re.compile(r"\bby \(([^)]*)\)|([a-z_]+)(?:=~|!~|!=|=)\"")


def expressions() -> Iterator[str]:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
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
    known = {"le"}.union(*(SERVED[name].labels for name in names))
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
