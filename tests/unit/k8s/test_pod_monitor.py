"""The component with which the Prometheus operator finds the metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from strata.shared.metric_names import METRICS
from strata.shared.metrics_endpoint import METRICS_PATH
from unit.k8s.custom_resources import POD_MONITOR_SCHEMA
from unit.k8s.manifests import (
    BASE,
    NAME,
    POD_MONITOR,
    containers_of,
    kustomization,
    load,
    of_kind,
    rendered_with,
    services,
)

OBJECTS = load(BASE)
(MONITOR,) = load(POD_MONITOR)
DEPLOYMENTS = of_kind(OBJECTS, "Deployment")


def test_the_monitor_reads_every_metrics_port_of_the_pods() -> None:
    ports = {
        port["name"]
        for deployment in DEPLOYMENTS.values()
        for container in containers_of(deployment).values()
        for port in container["ports"]
        if "metrics" in port["name"]
    }
    endpoints = MONITOR["spec"]["podMetricsEndpoints"]
    assert {endpoint["port"] for endpoint in endpoints} == ports
    assert {endpoint["path"] for endpoint in endpoints} == {METRICS_PATH}


def test_the_job_is_the_name_of_the_deployment() -> None:
    assert MONITOR["spec"]["jobLabel"] == NAME
    for name, deployment in DEPLOYMENTS.items():
        assert deployment["spec"]["template"]["metadata"]["labels"][NAME] == name
    # Labels that the operator sets itself rename those of a metric.
    set_by_operator = {"namespace", "pod", "container", "endpoint", "job", "instance"}
    assert not any(set_by_operator & set(metric.labels) for metric in METRICS.values())


def test_the_monitor_selects_the_label_of_the_pods_of_the_base() -> None:
    (labels,) = kustomization(BASE)["labels"]
    assert labels["includeTemplates"] is True
    assert MONITOR["spec"]["selector"]["matchLabels"].items() <= labels["pairs"].items()


@pytest.mark.child_process
def test_the_monitor_selects_the_pods_of_all_services(tmp_path: Path) -> None:
    objects = rendered_with(POD_MONITOR, tmp_path)
    if objects is None:
        pytest.skip("kubectl is not installed")
    monitor = of_kind(objects, "PodMonitor")["strata"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    selected = {
        name
        for name, deployment in of_kind(objects, "Deployment").items()
        if wanted <= deployment["spec"]["template"]["metadata"]["labels"].items()
    }
    assert selected == {service.app for service in services().values()}


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"selector": {"matchLabels": {}}}},
        {"spec": {**MONITOR["spec"], "endpoints": []}},
        {"spec": {**MONITOR["spec"], "podMetricsEndpoints": [{"port": 7690}]}},
    ],
    ids=["no endpoints", "endpoints of a ServiceMonitor", "number in place of a name"],
)
def test_the_schema_rejects_mistakes(change: dict[str, Any]) -> None:
    jsonschema.validate(MONITOR, POD_MONITOR_SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**MONITOR, **change}, POD_MONITOR_SCHEMA)
