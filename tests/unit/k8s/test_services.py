"""The manifests of services match the code."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from strata.agent_loop.settings import AgentLoopSettings
from strata.cli.settings import CliSettings
from strata.gateway.settings import GatewaySettings
from strata.protocol.errors import UnauthenticatedError
from strata.shared.auth import TokenSigner, TokenVerifier
from strata.shared.metrics_endpoint import METRICS_PATH
from strata.shared.secrets import read_master_keys
from strata.shared.settings import ServiceSettings, unknown_variables
from strata.tool_execution.settings import ToolExecutionSettings
from strata.tool_runner.settings import ToolRunnerSettings
from unit.k8s.manifests import (
    BASE,
    REPOSITORY,
    RUNNER,
    Object,
    ServiceFacts,
    container_of,
    containers_of,
    environment_of,
    kustomization,
    load,
    of_kind,
    pod_of,
    services,
)
from unit.k8s.secrets_script import secret_objects

OBJECTS = load(BASE)
DEPLOYMENTS = of_kind(OBJECTS, "Deployment")
MIGRATE = of_kind(OBJECTS, "Job")["migrate"]
EVERY_SERVICE = pytest.mark.parametrize(
    "service", services().values(), ids=lambda service: service.name
)


def settings_of(service: ServiceFacts, monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """Returns the settings that the process of a service would have in the cluster."""
    environment = environment_of(OBJECTS, DEPLOYMENTS[service.app])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert unknown_variables(service.settings, environment) == []
    return service.settings()


def runner() -> Object:
    """The container that runs code of tools."""
    return containers_of(DEPLOYMENTS["tool-execution"])[RUNNER]


def runner_settings(monkeypatch: pytest.MonkeyPatch) -> ToolRunnerSettings:
    environment = environment_of(OBJECTS, DEPLOYMENTS["tool-execution"], runner())
    for name, value in environment.items():
        assert name.startswith("STRATA_TOOL_RUNNER_")
        monkeypatch.setenv(name, value)
    assert unknown_variables(ToolRunnerSettings, environment) == []
    return ToolRunnerSettings()


# Runs the service that the program is named after.
SERVICE_ENTRY = "strata.shared.service_entry:main"


def test_there_is_one_deployment_per_service() -> None:
    assert set(DEPLOYMENTS) == {service.app for service in services().values()}
    assert len(services()) == 6


def test_the_image_has_the_version_of_the_release() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (image,) = kustomization(BASE)["images"]
    assert image == {"name": "strata", "newTag": project["version"]}


@EVERY_SERVICE
def test_a_service_is_run_by_its_own_script(service: ServiceFacts) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    container = container_of(DEPLOYMENTS[service.app])
    (command,) = container["command"]
    assert command == f"strata-{service.name.replace('_', '-')}"
    assert project["scripts"][command] == SERVICE_ENTRY
    assert container["image"] == "strata"


@EVERY_SERVICE
def test_services_expose_the_ports_that_they_listen_on(
    service: ServiceFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(service, monkeypatch)
    assert settings.host == "0.0.0.0"
    expected = {"grpc": settings.port}
    if isinstance(settings, GatewaySettings):
        assert settings.http_port is not None
        expected["http"] = settings.http_port
    assert settings.port == service.port
    ports = container_of(DEPLOYMENTS[service.app])["ports"]
    assert {port["name"]: port["containerPort"] for port in ports} == {
        **expected,
        "metrics": settings.metrics_port,
    }
    exposed = of_kind(OBJECTS, "Service")[service.app]["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in exposed} == expected
    assert {port["appProtocol"] for port in exposed} == set(expected)


@EVERY_SERVICE
def test_the_annotations_name_the_metrics_port_to_prometheus(
    service: ServiceFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = settings_of(service, monkeypatch).metrics_port
    assert DEPLOYMENTS[service.app]["spec"]["template"]["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": METRICS_PATH,
    }
    # It has no keys, so clients must not reach it.
    exposed = of_kind(OBJECTS, "Service")[service.app]["spec"]["ports"]
    assert port not in [one["port"] for one in exposed]
    (rule,) = of_kind(OBJECTS, "NetworkPolicy")["metrics"]["spec"]["ingress"]
    runner_port = runner_settings(monkeypatch).metrics_port
    assert [allowed["port"] for allowed in rule["ports"]] == [port, runner_port]
    assert all("namespaceSelector" in peer for peer in rule["from"])


@EVERY_SERVICE
def test_services_are_headless_so_that_clients_balance(service: ServiceFacts) -> None:
    assert of_kind(OBJECTS, "Service")[service.app]["spec"]["clusterIP"] == "None"


@EVERY_SERVICE
def test_every_variable_is_a_setting_of_the_service(service: ServiceFacts) -> None:
    prefix = f"STRATA_{service.name.upper()}_"
    for name in environment_of(OBJECTS, DEPLOYMENTS[service.app]):
        assert name.startswith(prefix), name
        field = name.removeprefix(prefix).lower().partition("__")[0]
        assert field in service.settings.model_fields, name


@EVERY_SERVICE
def test_a_service_has_the_targets_of_the_services_that_it_calls(
    service: ServiceFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {
        name: f"dns:///{services()[name].app}:{services()[name].port}" for name in service.callees
    }
    if service.name == "tool_execution":
        expected["tool_runner"] = runner_settings(monkeypatch).host
    assert settings_of(service, monkeypatch).targets == expected


@EVERY_SERVICE
def test_a_service_has_access_only_to_the_databases_it_opens(
    service: ServiceFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(service, monkeypatch)
    secret = f"strata-{service.app}-database"
    urls = {"database_url": f"{secret}/url", "worker_database_url": f"{secret}/worker-url"}
    for field, url in urls.items():
        assert getattr(settings, field) == (url if field in service.databases else "")


@EVERY_SERVICE
def test_only_the_gateway_has_the_private_signing_key(service: ServiceFacts) -> None:
    environment = environment_of(OBJECTS, DEPLOYMENTS[service.app])
    (keys,) = [v for v in pod_of(DEPLOYMENTS[service.app])["volumes"] if v["name"] == "keys"]
    (mount,) = [
        mount
        for mount in container_of(DEPLOYMENTS[service.app])["volumeMounts"]
        if mount["name"] == "keys"
    ]
    files = {value for name, value in environment.items() if name.endswith("_FILE")}
    if service.name == "gateway":
        assert keys["secret"]["secretName"] == "strata-gateway-keys"
        secrets = ("private.pem", "pepper", "master.keys")
        assert files == {f"{mount['mountPath']}/{name}" for name in secrets}
    elif service.name == "core_memory":
        assert keys["secret"]["secretName"] == "strata-core-memory-keys"
        assert files == {f"{mount['mountPath']}/public.pem", f"{mount['mountPath']}/worker.pem"}
    elif service.name in {"agent_loop", "tool_execution"}:
        assert keys["secret"]["secretName"] == f"strata-{service.app}-keys"
        assert files == {f"{mount['mountPath']}/public.pem", f"{mount['mountPath']}/master.keys"}
    elif service.name == "archival":
        assert keys["secret"]["secretName"] == "strata-archival-keys"
        assert files == {
            f"{mount['mountPath']}/public.pem",
            f"{mount['mountPath']}/file-worker.pem",
        }
    else:
        assert keys["secret"]["secretName"] == "strata-token-keys"
        assert files == {f"{mount['mountPath']}/public.pem"}
    assert mount["readOnly"] is True


def test_the_tool_runner_is_a_second_container_without_the_secrets_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = runner_settings(monkeypatch)
    service = settings_of(services()["tool_execution"], monkeypatch)
    assert isinstance(service, ToolExecutionSettings)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (command,) = runner()["command"]
    assert command == "strata-tool-runner"
    assert project["scripts"][command] == SERVICE_ENTRY
    for kind in ("startupProbe", "livenessProbe"):
        assert runner()[kind]["exec"]["command"] == [command, "check"]
    # No database and no cluster: apart from the socket there are only the metrics.
    assert settings.database_url == settings.worker_database_url == ""
    assert settings.metrics_host == "0.0.0.0"
    (port,) = runner()["ports"]
    assert port["containerPort"] == settings.metrics_port != service.metrics_port
    assert not any("secretKeyRef" in str(variable) for variable in runner().get("env", ()))
    volumes = {
        volume["name"]: volume for volume in pod_of(DEPLOYMENTS["tool-execution"])["volumes"]
    }
    secrets = {
        volumes[mount["name"]]["secret"]["secretName"]
        for mount in runner()["volumeMounts"]
        if "secret" in volumes[mount["name"]]
    }
    assert secrets == {"strata-token-keys"}
    # Another user, with access to the files of its group.
    pod = pod_of(DEPLOYMENTS["tool-execution"])["securityContext"]
    assert runner()["securityContext"]["runAsUser"] != pod["runAsUser"]
    assert runner()["securityContext"]["runAsGroup"] == pod["fsGroup"]
    assert settings.packages_path == service.packages_path
    assert settings.grace_s >= service.grace_s


def test_both_containers_mount_the_socket_and_only_the_service_writes_packages() -> None:
    containers = containers_of(DEPLOYMENTS["tool-execution"])
    mounts = {
        name: {mount["name"]: mount for mount in container["volumeMounts"]}
        for name, container in containers.items()
    }
    theirs, ours = mounts[RUNNER], mounts["tool-execution"]
    assert {name for name in theirs if name in ours} == {"runner", "packages"}
    for shared in ("runner", "packages"):
        assert theirs[shared]["mountPath"] == ours[shared]["mountPath"]
    assert theirs["packages"]["readOnly"] is True
    assert "readOnly" not in ours["packages"]


def probes() -> Iterator[Any]:
    for service in services().values():
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            yield pytest.param(service, kind, id=f"{service.name}-{kind}")


@pytest.mark.parametrize(("service", "kind"), list(probes()))
def test_probes_name_a_grpc_service_of_the_container(service: ServiceFacts, kind: str) -> None:
    probe = container_of(DEPLOYMENTS[service.app])[kind]["grpc"]
    assert probe["port"] == service.port
    assert probe["service"] in {grpc_service.full_name for grpc_service in service.services}


@EVERY_SERVICE
def test_a_stopping_service_has_enough_time(
    service: ServiceFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(service, monkeypatch)
    allowed = pod_of(DEPLOYMENTS[service.app])["terminationGracePeriodSeconds"]
    assert allowed >= settings.drain_s + settings.grace_s + 10
    # Kubelets check every five seconds, so draining must take at least that long.
    assert settings.drain_s >= 5


def test_the_grace_period_covers_the_longest_work(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = settings_of(services()["gateway"], monkeypatch)
    agent_loop = settings_of(services()["agent_loop"], monkeypatch)
    tools = settings_of(services()["tool_execution"], monkeypatch)
    assert isinstance(gateway, GatewaySettings)
    assert isinstance(agent_loop, AgentLoopSettings)
    assert isinstance(tools, ToolExecutionSettings)
    assert gateway.grace_s >= gateway.run_timeout_s
    assert agent_loop.grace_s >= gateway.run_timeout_s
    assert tools.grace_s >= tools.tool_timeout_s


def test_the_migration_has_the_url_of_every_database() -> None:
    environment = environment_of(OBJECTS, MIGRATE)
    prefix = CliSettings.model_config["env_prefix"]
    assert "database_admin_url" in CliSettings.model_fields
    expected = {f"{prefix}DATABASE_ADMIN_URL": "strata-migrate/admin-url"}
    for service in services().values():
        if service.databases:
            secret = f"strata-{service.app}-database"
            name = f"STRATA_{service.name.upper()}"
            expected[f"{name}_DATABASE_URL"] = f"{secret}/url"
            expected[f"{name}_WORKER_DATABASE_URL"] = f"{secret}/worker-url"
    assert environment == expected


def referenced(workload: Object) -> Iterator[tuple[str, str | None, bool]]:
    """Yields secret, key and whether it may be absent, for every reference of a pod."""
    for entry in container_of(workload).get("env", ()):
        reference = entry.get("valueFrom", {}).get("secretKeyRef")
        if reference:
            yield reference["name"], reference["key"], reference.get("optional", False)
    for volume in pod_of(workload).get("volumes", ()):
        if "secret" in volume:
            yield volume["secret"]["secretName"], None, False


def test_the_secrets_script_makes_the_secrets_of_the_pods() -> None:
    made = {secret["metadata"]["name"]: secret["stringData"] for secret in secret_objects()}
    engines = load(BASE.parent / "components" / "engines")
    workloads = [*DEPLOYMENTS.values(), MIGRATE, *of_kind(engines, "StatefulSet").values()]
    used = set()
    for workload in workloads:
        for name, key, optional in referenced(workload):
            if optional:
                continue
            assert name in made
            assert key is None or key in made[name]
            used.add(name)
    assert used == set(made)
    assert made["strata-gateway-keys"].keys() == {"private.pem", "pepper", "master.keys"}
    assert made["strata-token-keys"].keys() == {"public.pem"}
    assert made["strata-core-memory-keys"].keys() == {"public.pem", "worker.pem"}
    assert made["strata-agent-loop-keys"].keys() == {"public.pem", "master.keys"}
    assert made["strata-tool-execution-keys"].keys() == {"public.pem", "master.keys"}
    masters = [
        made[f"strata-{service}-keys"]["master.keys"]
        for service in ("agent-loop", "tool-execution")
    ]
    assert masters[0] != masters[1]
    for master in masters:
        assert len(read_master_keys(master.splitlines())) == 1


def test_prompts_of_an_operator_are_a_config_map_in_the_folder_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of(services()["agent_loop"], monkeypatch)
    assert isinstance(settings, AgentLoopSettings)
    deployment = DEPLOYMENTS["agent-loop"]
    [volume] = [volume for volume in pod_of(deployment)["volumes"] if volume["name"] == "prompts"]
    [mount] = [
        mount for mount in container_of(deployment)["volumeMounts"] if mount["name"] == "prompts"
    ]
    # A cluster without custom prompts has no such ConfigMap.
    assert volume["configMap"] == {"name": "strata-prompts", "optional": True}
    assert mount["mountPath"] == str(settings.prompts_path)
    assert mount["readOnly"] is True


def test_only_archival_accepts_the_worker_key_of_core_memory() -> None:
    made = {secret["metadata"]["name"]: secret["stringData"] for secret in secret_objects()}
    keys = made["strata-core-memory-keys"]
    token = TokenSigner(keys["worker.pem"]).mint("", "project-1", "core-memory-worker", ["files"])
    archival = made["strata-archival-keys"]
    assert archival.keys() == {"public.pem", "file-worker.pem"}
    assert TokenVerifier(archival["file-worker.pem"]).verify(token).project_id == "project-1"
    everyday = TokenSigner(made["strata-gateway-keys"]["private.pem"]).mint("o", "p", "k", [])
    assert TokenVerifier(archival["public.pem"]).verify(everyday).project_id == "p"
    # Archival accepts this token only in one place.
    for others in ("strata-archival-keys", "strata-token-keys", "strata-core-memory-keys"):
        with pytest.raises(UnauthenticatedError):
            TokenVerifier(made[others]["public.pem"]).verify(token)
