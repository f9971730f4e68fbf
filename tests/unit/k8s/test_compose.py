"""The file for Docker Compose has the settings, limits and images of the manifests."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from strata.agent_loop.settings import AgentLoopSettings
from strata.cli.settings import CliSettings
from strata.gateway.settings import GatewaySettings
from strata.shared.metrics_endpoint import HEALTH_PATH
from strata.shared.settings import ServiceSettings, unknown_variables
from strata.tool_execution.settings import ToolExecutionSettings
from strata.tool_runner.settings import ToolRunnerSettings
from unit.k8s.manifests import (
    BASE,
    COMPONENTS,
    K8S,
    REPOSITORY,
    RUNNER,
    Object,
    ServiceFacts,
    containers_of,
    env_file,
    load,
    objects_in,
    of_kind,
    pod_of,
    services,
)
from unit.k8s.secrets_script import secret_files, secret_objects, write_files

FOLDER = K8S / "compose"
(COMPOSE,) = objects_in(FOLDER / "compose.yaml")
SERVICES: dict[str, Object] = COMPOSE["services"]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
MANIFESTS = [*load(BASE), *load(COMPONENTS[0])]
WORKLOADS = {
    name: workload
    for kind in ("Deployment", "Job", "StatefulSet")
    for name, workload in of_kind(MANIFESTS, kind).items()
}
CONTAINERS = {
    name: (workload, container)
    for workload in WORKLOADS.values()
    for name, container in containers_of(workload).items()
}
SECRETS_ONLY = "secrets"
KEYS_FOLDER = "/run/strata/keys"
EVERY_CONTAINER = pytest.mark.parametrize("name", CONTAINERS)
EVERY_SERVICE = pytest.mark.parametrize(
    "service", services().values(), ids=lambda service: service.name
)


def environment_of_container(name: str) -> dict[str, str]:
    """The variables of a container that are not secrets."""
    environment: dict[str, str] = {}
    for file in SERVICES[name].get("env_file", ()):
        if isinstance(file, str):
            environment |= env_file((FOLDER / file).resolve())
        else:
            assert file["required"] is False
    own: dict[str, str] = SERVICES[name].get("environment", {})
    return environment | own


def secrets_of(name: str, files: dict[str, dict[str, str]]) -> dict[str, str]:
    """The variables of a container that are secrets, as the shell would read them."""
    words = shlex.split(files[name].get("environment", ""))
    return {variable: value for variable, _, value in (word.partition("=") for word in words)}


def settings_of(
    name: str, settings: type[ServiceSettings], monkeypatch: pytest.MonkeyPatch
) -> ServiceSettings:
    """Returns the settings that the process of a container would have."""
    environment = environment_of_container(name)
    environment |= secrets_of(name, secret_files(secret_objects()))
    prefix = settings.model_config["env_prefix"]
    assert all(variable.startswith(prefix) for variable in environment)
    assert unknown_variables(settings, environment) == []
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return settings()


def mounts_of(name: str) -> dict[str, tuple[str, bool]]:
    """The named volumes of a container: where they are, and whether they are read-only."""
    mounts = {}
    for mount in SERVICES[name].get("volumes", ()):
        source, target, *mode = mount.split(":")
        mounts[source] = (target, mode == ["ro"])
    return mounts


def mebibytes(text: str) -> int:
    """Reads a size as Kubernetes (512Mi, 1Gi) or Docker (512m, 1g) writes it."""
    match = re.fullmatch(r"(\d+)([mg])i?", text.lower())
    assert match is not None, text
    return int(match[1]) * {"m": 1, "g": 1024}[match[2]]


def test_the_containers_match_the_manifests() -> None:
    assert SERVICES.keys() == {*CONTAINERS, SECRETS_ONLY}


@EVERY_CONTAINER
def test_a_container_has_the_image_the_command_and_the_limits_of_the_manifests(name: str) -> None:
    workload, container = CONTAINERS[name]
    here = SERVICES[name]
    expected = (
        f"strata:{PROJECT['version']}" if container["image"] == "strata" else container["image"]
    )
    assert here["image"] == expected
    if "command" in container:
        assert here["command"] == container["command"]
        assert here["command"][0] in PROJECT["scripts"]
    assert mebibytes(here["mem_limit"]) == mebibytes(container["resources"]["limits"]["memory"])
    grace = pod_of(workload).get("terminationGracePeriodSeconds")
    assert here.get("stop_grace_period") == (f"{grace}s" if grace else None)


@EVERY_CONTAINER
def test_a_container_has_no_privileges_and_runs_as_the_user_of_the_manifests(name: str) -> None:
    workload, container = CONTAINERS[name]
    here = SERVICES[name]
    assert here["read_only"] is True
    assert here["cap_drop"] == ["ALL"]
    assert "cap_add" not in here
    assert here["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "network_mode", "pid", "ipc"} & here.keys()
    pod = pod_of(workload)["securityContext"]
    user = container["securityContext"].get("runAsUser", pod["runAsUser"])
    # The image of Strata has its user itself (tests/unit/house/test_dockerfile.py).
    default = {"user": "10001:10001"} if here["image"].startswith("strata:") else {}
    assert (default | here)["user"] == f"{user}:{pod['runAsGroup']}"


def test_only_the_container_that_creates_secrets_runs_as_root_and_without_network() -> None:
    roots = {name for name, service in SERVICES.items() if service.get("user", "1")[0] == "0"}
    assert roots == {SECRETS_ONLY}
    assert SERVICES[SECRETS_ONLY]["network_mode"] == "none"
    assert SERVICES[SECRETS_ONLY]["cap_drop"] == ["ALL"]


def test_images_are_pinned_and_ours_is_built_once() -> None:
    builders = {name for name, service in SERVICES.items() if "build" in service}
    assert builders == {SECRETS_ONLY}
    assert (FOLDER / SERVICES[SECRETS_ONLY]["build"] / "Dockerfile").is_file()
    for name, service in SERVICES.items():
        assert re.search(r":v?\d", service["image"]), name
        ours = service["image"].startswith("strata:")
        assert (service.get("pull_policy") == "never") == ours


@EVERY_SERVICE
def test_services_listen_and_call_as_in_the_manifests(
    service: ServiceFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(service.app, service.settings, monkeypatch)
    assert settings.host == "0.0.0.0"
    assert settings.port == service.port
    expected = {
        name: f"dns:///{services()[name].app}:{services()[name].port}" for name in service.callees
    }
    for callee in expected:
        shared = set(SERVICES[service.app]["networks"]) & set(
            SERVICES[services()[callee].app]["networks"]
        )
        assert shared, callee
    if service.name == "tool_execution":
        expected["tool_runner"] = environment_of_container(RUNNER)["STRATA_TOOL_RUNNER_HOST"]
    assert settings.targets == expected
    if "qdrant_url" in service.settings.model_fields:
        environment = environment_of_container(service.app)
        assert environment[f"STRATA_{service.name.upper()}_QDRANT_URL"] == "http://qdrant:6334"
        assert SERVICES["qdrant"]["environment"]["QDRANT__SERVICE__GRPC_PORT"] == "6334"


def test_the_edge_is_published_on_the_loopback_address_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of("gateway", GatewaySettings, monkeypatch)
    assert isinstance(settings, GatewaySettings)
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"gateway"}
    inner = set()
    for port in SERVICES["gateway"]["ports"]:
        match = re.fullmatch(r"127\.0\.0\.1:\$\{(STRATA_\w+):-(\d+)\}:(\d+)", port)
        assert match is not None, port
        assert match[2] == match[3]
        inner.add(int(match[3]))
    assert inner == {settings.port, settings.http_port, settings.metrics_port}


def test_every_service_has_a_health_check_on_its_metrics_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for service in services().values():
        port = settings_of(service.app, service.settings, monkeypatch).metrics_port
        check = " ".join(SERVICES[service.app]["healthcheck"]["test"])
        assert f"http://127.0.0.1:{port}{HEALTH_PATH}" in check
    assert SERVICES[RUNNER]["healthcheck"]["test"] == [
        "CMD",
        *containers_of(WORKLOADS["tool-execution"])[RUNNER]["livenessProbe"]["exec"]["command"],
    ]


def test_every_dependency_has_a_health_check_or_ends() -> None:
    for name, service in SERVICES.items():
        for dependency, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[dependency], (name, dependency)
            else:
                assert how["condition"] == "service_completed_successfully"
                assert SERVICES[dependency]["restart"] == "no", (name, dependency)


def waited_for(name: str) -> set[str]:
    names = set(SERVICES[name].get("depends_on", ()))
    return names.union(*(waited_for(dependency) for dependency in names))


def test_every_container_waits_for_the_secrets_and_services_for_the_migration() -> None:
    for name in CONTAINERS:
        assert SECRETS_ONLY in waited_for(name)
    for service in services().values():
        assert {"migrate", "postgres"} <= waited_for(service.app)
        # A start order cannot include calls of tools back to the gateway, and of the gateway to
        # itself.
        callees = {services()[name].app for name in service.callees} - {"gateway"}
        if service.name in {"gateway", "agent_loop"}:
            assert callees <= waited_for(service.app)


def test_a_container_gets_the_variables_of_the_manifests() -> None:
    made = {secret["metadata"]["name"]: secret["stringData"] for secret in secret_objects()}
    files = secret_files([{"metadata": {"name": n}, "stringData": v} for n, v in made.items()])
    for name, (_, container) in CONTAINERS.items():
        secrets = {}
        plain = {}
        for entry in container.get("env", ()):
            if "value" in entry:
                plain[entry["name"]] = entry["value"]
            elif "secretKeyRef" in entry["valueFrom"]:
                reference = entry["valueFrom"]["secretKeyRef"]
                if not reference.get("optional"):
                    secrets[entry["name"]] = made[reference["name"]][reference["key"]]
        assert secrets_of(name, files) == secrets
        assert plain.items() <= environment_of_container(name).items()
    (url,) = (value for name, value in secrets_of("migrate", files).items() if "ADMIN" in name)
    assert url.endswith(f"@postgres:5432/{SERVICES['postgres']['environment']['POSTGRES_DB']}")


@EVERY_CONTAINER
def test_a_container_mounts_only_its_own_keys(name: str) -> None:
    files = secret_files(secret_objects())
    keys = {mount: place for mount, place in mounts_of(name).items() if mount.endswith("-keys")}
    assert keys == {f"{name}-keys": (KEYS_FOLDER, True)}
    assert mounts_of(SECRETS_ONLY)[f"{name}-keys"] == (f"/secrets/{name}", False)
    for variable, value in environment_of_container(name).items():
        if variable.endswith("_FILE"):
            assert value.removeprefix(f"{KEYS_FOLDER}/") in files[name], variable
    assert ("environment" in files[name]) == ("entrypoint" in SERVICES[name])


def test_the_runner_shares_two_folders_with_tool_execution_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = settings_of(RUNNER, ToolRunnerSettings, monkeypatch)
    service = settings_of("tool-execution", ToolExecutionSettings, monkeypatch)
    assert isinstance(runner, ToolRunnerSettings)
    assert isinstance(service, ToolExecutionSettings)
    here, there = mounts_of(RUNNER), mounts_of("tool-execution")
    assert here.keys() & there.keys() == {"runner", "packages"}
    assert runner.host == f"unix:{here['runner'][0]}/socket"
    assert here["runner"] == there["runner"]
    assert here["packages"] == (str(runner.packages_path), True)
    assert there["packages"] == (str(service.packages_path), False)
    networks = {name for name in SERVICES if "tools" in SERVICES[name].get("networks", ())}
    assert networks == {RUNNER}
    assert SERVICES[RUNNER]["networks"] == ["tools"]


def test_every_volume_and_network_is_used_and_declared() -> None:
    mounted = {
        volume for name in SERVICES for volume in mounts_of(name) if not volume.startswith(".")
    }
    assert mounted == COMPOSE["volumes"].keys()
    joined = {name for service in SERVICES.values() for name in service.get("networks", ())}
    assert joined == COMPOSE["networks"].keys()
    # Only services that call external hosts have a network with access to them.
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    outside = {name for name in SERVICES if "outside" in SERVICES[name].get("networks", ())}
    assert outside == {"gateway", "agent-loop", "tool-execution"}


def test_variables_of_the_file_itself_are_settings_of_the_command_line() -> None:
    text = (FOLDER / "compose.yaml").read_text("utf-8")
    variables = set(re.findall(r"\$\{(\w+)", text))
    assert variables == {"STRATA_PORT", "STRATA_HTTP_PORT", "STRATA_METRICS_PORT"}
    prefix = CliSettings.model_config["env_prefix"]
    assert f"{prefix}PORT" in variables


def test_there_is_one_gateway_and_no_prompts_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = settings_of("gateway", GatewaySettings, monkeypatch)
    agent_loop = settings_of("agent-loop", AgentLoopSettings, monkeypatch)
    assert isinstance(gateway, GatewaySettings)
    assert isinstance(agent_loop, AgentLoopSettings)
    assert gateway.only_replica is True
    assert agent_loop.prompts_path is None


# --- The files of the secrets ----------------------------------------------------------------


def test_files_are_written_once_for_user_and_group(tmp_path: Path) -> None:
    files = secret_files(secret_objects())
    assert write_files(tmp_path, files) is True
    again = secret_files(secret_objects())
    assert write_files(tmp_path, again) is False
    for name, texts in files.items():
        for file, text in texts.items():
            path = tmp_path / name / file
            assert path.read_text("utf-8") == text
            assert stat.S_IMODE(path.stat().st_mode) & 0o337 == 0


def test_an_incomplete_set_of_secrets_is_not_completed(tmp_path: Path) -> None:
    files = secret_files(secret_objects())
    write_files(tmp_path, files)
    lost = tmp_path / "gateway" / "pepper"
    lost.unlink()
    with pytest.raises(FileExistsError, match="gateway/pepper"):
        write_files(tmp_path, secret_files(secret_objects()))
    assert not lost.exists()


@pytest.mark.child_process
def test_the_entrypoint_passes_the_secrets_to_the_command(tmp_path: Path) -> None:
    objects = secret_objects(admin_password="it's $HOME & more")
    files = secret_files(objects)
    write_files(tmp_path, files)
    entrypoint: list[Any] = [
        word.replace(KEYS_FOLDER, str(tmp_path / "postgres")).replace("$$", "$")
        for word in SERVICES["postgres"]["entrypoint"]
    ]
    done = subprocess.run(
        [*entrypoint, "env"],
        capture_output=True,
        check=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
        timeout=30,
    )
    assert "POSTGRES_PASSWORD=it's $HOME & more" in done.stdout.splitlines()
