"""The component that turns traces on."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.shared.settings import unknown_variables
from strata.shared.tracing.settings import TraceSettings
from unit.k8s.manifests import (
    K8S,
    RUNNER,
    TRACES,
    containers_of,
    load,
    of_kind,
    rendered_with,
    services,
)

SECRET = {"secretRef": {"name": "strata-traces"}}
COLLECTOR_PORT = 4318


def test_it_names_settings_that_exist() -> None:
    text = (TRACES / "kustomization.yaml").read_text("utf-8")
    words = {word.strip(".,:") for word in text.split() if "STRATA_TRACES_" in word}
    assert len(words) == 3
    assert unknown_variables(TraceSettings, words) == []


def test_only_the_services_may_reach_the_collector() -> None:
    (policy,) = load(TRACES)
    (expression,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert set(expression["values"]) == {service.app for service in services().values()}
    (rule,) = policy["spec"]["egress"]
    assert [port["port"] for port in rule["ports"]] == [COLLECTOR_PORT]
    metrics = of_kind(load(K8S / "base"), "NetworkPolicy")["metrics"]["spec"]["ingress"]
    # The collector runs where Prometheus runs.
    assert rule["to"] == metrics[0]["from"]


@pytest.mark.child_process
def test_services_get_the_secret_and_the_code_of_tools_does_not(tmp_path: Path) -> None:
    objects = rendered_with(TRACES, tmp_path)
    if objects is None:
        pytest.skip("kubectl is not installed")
    deployments = of_kind(objects, "Deployment")
    assert set(deployments) == {service.app for service in services().values()}
    for name, deployment in deployments.items():
        for container_name, container in containers_of(deployment).items():
            assert (SECRET in container["envFrom"]) is (container_name == name)
            assert container_name in {name, RUNNER}
