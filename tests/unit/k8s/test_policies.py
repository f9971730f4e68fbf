"""Security and availability rules for every workload."""

from __future__ import annotations

import json

import pytest

from unit.k8s.manifests import (
    BASE,
    COMPONENTS,
    NAME,
    OVERLAYS,
    Object,
    container_of,
    containers_of,
    load,
    of_kind,
    pod_of,
    rendered,
    services,
)

ENGINES = load(COMPONENTS[0])
OBJECTS = load(BASE)
DEPLOYMENTS = of_kind(OBJECTS, "Deployment")
WORKLOADS = {
    **DEPLOYMENTS,
    **of_kind(OBJECTS, "Job"),
    **of_kind(ENGINES, "StatefulSet"),
}
EVERY_WORKLOAD = pytest.mark.parametrize("name", WORKLOADS)
EVERY_DEPLOYMENT = pytest.mark.parametrize("name", DEPLOYMENTS)


def test_every_kind_of_workload_is_checked() -> None:
    with_pods = [
        document for document in (*OBJECTS, *ENGINES) if "template" in document.get("spec", {})
    ]
    assert len(with_pods) == len(WORKLOADS)


@EVERY_WORKLOAD
def test_no_pod_runs_as_root_or_can_gain_privileges(name: str) -> None:
    pod = pod_of(WORKLOADS[name])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for one_container in containers_of(WORKLOADS[name]).values():
        container = one_container["securityContext"]
        assert container["allowPrivilegeEscalation"] is False
        assert container["readOnlyRootFilesystem"] is True
        assert container["capabilities"] == {"drop": ["ALL"]}
        assert container.get("runAsUser", 1) > 0
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
    assert not any("hostPath" in volume for volume in pod.get("volumes", ()))


@EVERY_WORKLOAD
def test_no_pod_mounts_a_cluster_token(name: str) -> None:
    pod = pod_of(WORKLOADS[name])
    accounts = of_kind([*OBJECTS, *ENGINES], "ServiceAccount")
    assert pod["serviceAccountName"] == name
    assert pod["automountServiceAccountToken"] is False
    assert accounts[name]["automountServiceAccountToken"] is False


@EVERY_WORKLOAD
def test_service_link_variables_are_disabled(name: str) -> None:
    assert pod_of(WORKLOADS[name])["enableServiceLinks"] is False


@EVERY_WORKLOAD
def test_memory_is_bounded_and_processor_time_is_not(name: str) -> None:
    for container in containers_of(WORKLOADS[name]).values():
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}


def test_the_namespace_enforces_the_strictest_standard() -> None:
    (namespace,) = of_kind(OBJECTS, "Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@EVERY_DEPLOYMENT
def test_replicas_are_spread_and_replaced_one_by_one(name: str) -> None:
    spec = DEPLOYMENTS[name]["spec"]
    labels = spec["selector"]["matchLabels"]
    assert labels == {NAME: name}
    assert spec["template"]["metadata"]["labels"][NAME] == name
    spread = pod_of(DEPLOYMENTS[name])["topologySpreadConstraints"]
    keys = {constraint["topologyKey"] for constraint in spread}
    assert keys == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    assert all(constraint["labelSelector"]["matchLabels"] == labels for constraint in spread)
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    budget = of_kind(OBJECTS, "PodDisruptionBudget")[name]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}


@EVERY_DEPLOYMENT
def test_a_service_has_several_replicas(name: str) -> None:
    scaler = of_kind(OBJECTS, "HorizontalPodAutoscaler").get(name)
    if scaler is None:
        assert DEPLOYMENTS[name]["spec"]["replicas"] >= 2
        return
    # A fixed number beside an autoscaler would reset its result at every rollout.
    assert "replicas" not in DEPLOYMENTS[name]["spec"]
    spec = scaler["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    assert 2 <= spec["minReplicas"] < spec["maxReplicas"]
    (metric,) = spec["metrics"]
    assert metric["resource"]["name"] == "cpu"


def test_the_memory_services_scale_with_their_processor_load() -> None:
    scaled = set(of_kind(OBJECTS, "HorizontalPodAutoscaler"))
    assert scaled == {"core-memory", "recall", "archival"}


# --- The network -----------------------------------------------------------------------------

Edge = tuple[str, str, int]
POSTGRES, QDRANT, OUTSIDE = "postgres", "qdrant", "public addresses"


def names_in(peer: Object) -> list[str]:
    selector = peer["podSelector"]
    names = list(selector.get("matchLabels", {}).values())
    for expression in selector.get("matchExpressions", ()):
        assert (expression["key"], expression["operator"]) == (NAME, "In")
        names += expression["values"]
    assert names, "an empty selector would match every pod"
    return names


def port_of(rule: Object) -> int:
    (port,) = rule["ports"]
    assert port["protocol"] == "TCP"
    return int(port["port"])


def allowed_out(policies: dict[str, Object]) -> set[Edge]:
    targets = set()
    for policy in policies.values():
        if not policy["spec"]["podSelector"].get("matchLabels"):
            continue
        (source,) = names_in(policy["spec"])
        for rule in policy["spec"].get("egress", ()):
            for peer in rule["to"]:
                if "ipBlock" in peer:
                    targets.add((source, OUTSIDE, port_of(rule)))
                else:
                    targets |= {(source, target, port_of(rule)) for target in names_in(peer)}
    return targets


def allowed_in(policies: dict[str, Object]) -> set[Edge]:
    sources = set()
    for policy in policies.values():
        if not policy["spec"]["podSelector"].get("matchLabels"):
            continue
        (target,) = names_in(policy["spec"])
        for rule in policy["spec"].get("ingress", ()):
            for peer in rule.get("from", ()):
                sources |= {(source, target, port_of(rule)) for source in names_in(peer)}
    return sources


def edges_in_code() -> set[Edge]:
    edges: set[Edge] = {("migrate", POSTGRES, 5432)}
    for service in services().values():
        edges |= {(service.app, services()[to].app, services()[to].port) for to in service.callees}
        if "advertised_host" in service.settings.model_fields:
            edges.add((service.app, service.app, service.port))
        if service.databases:
            edges.add((service.app, POSTGRES, 5432))
        if "qdrant_url" in service.settings.model_fields:
            edges.add((service.app, QDRANT, 6334))
        if "model_endpoints" in service.settings.model_fields:
            edges.add((service.app, OUTSIDE, 443))
        if {
            "web_private_networks",
            "webhook_private_networks",
        } & service.settings.model_fields.keys():
            edges |= {(service.app, OUTSIDE, 80), (service.app, OUTSIDE, 443)}
    return edges


def test_calls_in_the_code_match_the_architecture() -> None:
    memory = {"core-memory", "recall", "archival"}
    between = {(a, b) for a, b, _ in edges_in_code() if {a, b} <= set(DEPLOYMENTS)}
    assert between == (
        {("gateway", to) for to in memory | {"agent-loop", "tool-execution"}}
        | {("agent-loop", to) for to in memory | {"tool-execution"}}
        # A tool sends messages to other agents.
        | {("tool-execution", to) for to in memory | {"gateway"}}
        # The files of core memory are searched in archival memory.
        | {("core-memory", "archival")}
        # A run can be followed through any pod; the pod that holds it sends the events.
        | {("gateway", "gateway")}
    )


def test_allowed_egress_matches_the_calls_of_the_code() -> None:
    policies = of_kind([*OBJECTS, *ENGINES], "NetworkPolicy")
    assert allowed_out(policies) == edges_in_code()


def test_allowed_ingress_matches_the_calls_of_the_code() -> None:
    policies = of_kind([*OBJECTS, *ENGINES], "NetworkPolicy")
    # Every source may connect to the gateway.
    expected = {edge for edge in edges_in_code() if edge[1] not in {OUTSIDE, "gateway"}}
    assert allowed_in(policies) == expected


def test_traffic_is_denied_by_default() -> None:
    policies = of_kind(OBJECTS, "NetworkPolicy")
    assert policies["default-deny"]["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }
    for name, policy in policies.items():
        spec = policy["spec"]
        for rule in spec.get("egress", ()):
            assert rule["to"], f"{name} may go anywhere"
            assert rule["ports"], f"{name} may go to any port"
        if name not in {"default-deny", "names", "metrics"}:
            assert spec["policyTypes"] == ["Ingress", "Egress"]


def test_only_the_gateway_accepts_calls_from_outside() -> None:
    policies = of_kind([*OBJECTS, *ENGINES], "NetworkPolicy")
    open_to_all = {
        name
        for name, policy in policies.items()
        for rule in policy["spec"].get("ingress", ())
        if not rule.get("from")
    }
    assert open_to_all == {"gateway"}


@pytest.mark.parametrize("name", ["agent-loop", "gateway", "tool-execution"])
def test_workloads_with_internet_access_cannot_reach_private_addresses(name: str) -> None:
    spec = of_kind(OBJECTS, "NetworkPolicy")[name]["spec"]
    blocks = [
        peer["ipBlock"] for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer
    ]
    assert blocks
    for block in blocks:
        # 169.254.0.0/16 holds the metadata services of the clouds.
        assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"} <= set(
            block["except"]
        )


def test_external_engines_are_reached_by_the_same_services() -> None:
    policies = of_kind(load(COMPONENTS[1]), "NetworkPolicy")
    targets = {
        (source, target, port_of(policy["spec"]["egress"][0]))
        for target, name in ((POSTGRES, "external-postgres"), (QDRANT, "external-qdrant"))
        for policy in (policies[name],)
        for source in names_in(policy["spec"])
    }
    assert targets == {edge for edge in edges_in_code() if edge[1] in {POSTGRES, QDRANT}}


@pytest.mark.child_process
def test_rendered_overlays_keep_the_rules() -> None:
    objects = rendered(OVERLAYS[0])
    if objects is None:
        pytest.skip("kubectl is not installed")
    policies = of_kind(objects, "NetworkPolicy")
    assert allowed_out(policies) == edges_in_code()
    workloads = [object_ for object_ in objects if "template" in object_.get("spec", {})]
    assert len(workloads) == len(WORKLOADS)
    for workload in workloads:
        assert pod_of(workload)["securityContext"]["runAsNonRoot"] is True
        assert ":" in container_of(workload)["image"]
    assert "latest" not in json.dumps([container_of(workload)["image"] for workload in workloads])
