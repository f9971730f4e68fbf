"""The manifests as objects, and the facts of the code that they have to match."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from google.protobuf.descriptor import ServiceDescriptor

from strata.gateway.registry import PROXIED_SERVICES
from strata.shared.channels import services_of
from strata.shared.settings import ServiceSettings

REPOSITORY = Path(__file__).parents[3]
K8S = REPOSITORY / "k8s"
BASE = K8S / "base"
OVERLAYS = (K8S / "overlays" / "dev",)
TRACES = K8S / "components" / "traces"
POD_MONITOR = K8S / "components" / "pod-monitor"
ALERTS = K8S / "components" / "alerts"
MONITORING = K8S / "monitoring"
COMPONENTS = (
    K8S / "components" / "engines",
    K8S / "components" / "external-engines",
    TRACES,
    POD_MONITOR,
    ALERTS,
)
# Components that add no objects and only change those of the base.
CHANGES = (K8S / "components" / "gvisor",)

# libyaml, where PyYAML has it, reads ten times faster.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

NAME = "app.kubernetes.io/name"
# It runs in the pod of tool execution, which calls it over a socket: no Deployment, no port.
TOOL_RUNNER = "tool_runner"
Object = dict[str, Any]


@dataclass(frozen=True)
class ServiceFacts:
    """The facts about a service in its code."""

    name: str
    folder: Path
    settings: type[ServiceSettings]

    @property
    def app(self) -> str:
        """Its name in the cluster."""
        return self.name.replace("_", "-")

    @property
    def port(self) -> int:
        return int(self.settings.model_fields["port"].default)

    @property
    def services(self) -> list[ServiceDescriptor]:
        return services_of(self.name)

    @property
    def callees(self) -> set[str]:
        """The services of other pods that it opens channels to, read from its composition."""
        names = {
            call.args[0].value if isinstance(call.args[0], ast.Constant) else None
            for call in self._calls("channel")
        }
        if None in names:
            assert self.name == "gateway", "only the gateway takes services from a list"
            names = (names - {None}) | set(PROXIED_SERVICES)
        return {str(name) for name in names - {TOOL_RUNNER}}

    @property
    def databases(self) -> set[str]:
        """The settings with the databases that it opens, read from its composition."""
        openings = {"open_database": "database_url", "open_worker_database": "worker_database_url"}
        return {
            openings[node.func.id]
            for node in self._composition()
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in openings
        }

    def _composition(self) -> Iterator[ast.AST]:
        """Yields the nodes of `main`, and of the modules in `compose` if the service has some."""
        for path in (self.folder / "main.py", *sorted(self.folder.glob("compose/*.py"))):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))

    def _calls(self, method: str) -> Iterator[ast.Call]:
        for node in self._composition():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == method:
                yield node


@cache
def services() -> Mapping[str, ServiceFacts]:
    """Every folder with a `main.py` and a `settings.py` that describes a service with a port."""
    facts = {}
    for root in ("services", "gateway"):
        for main in sorted((REPOSITORY / root / "strata").glob("*/main.py")):
            name = main.parent.name
            if name == TOOL_RUNNER or (
                not (main.parent / "servicer.py").exists()
                and not (main.parent / "servicers").is_dir()
            ):
                continue
            module = importlib.import_module(f"strata.{name}.settings")
            classes = [
                value
                for value in vars(module).values()
                if isinstance(value, type)
                and issubclass(value, ServiceSettings)
                and value.__module__ == module.__name__
            ]
            assert len(classes) == 1, name
            facts[name] = ServiceFacts(name, main.parent, classes[0])
    return facts


def objects_in(file: Path) -> list[Object]:
    return [
        document
        for document in yaml.load_all(file.read_text(encoding="utf-8"), _LOADER)
        if document
    ]


def kustomization(folder: Path) -> Object:
    (document,) = objects_in(folder / "kustomization.yaml")
    return document


def load(folder: Path) -> list[Object]:
    """Returns the objects of a folder's own files, with the ConfigMaps it generates."""
    here = kustomization(folder)
    objects = [document for name in here["resources"] for document in objects_in(folder / name)]
    for generator in here.get("configMapGenerator", ()):
        data: dict[str, str] = {}
        for file in generator["envs"]:
            data |= env_file(folder / file)
        metadata = {"name": generator["name"]}
        objects.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        )
    return objects


def env_file(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    assert len({name for name, _, _ in pairs}) == len(pairs), f"{file} sets something twice"
    return {name: value for name, _, value in pairs}


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    return {object_["metadata"]["name"]: object_ for object_ in objects if object_["kind"] == kind}


def pod_of(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


RUNNER = "tool-runner"


def containers_of(workload: Object) -> dict[str, Object]:
    return {container["name"]: container for container in pod_of(workload)["containers"]}


def container_of(workload: Object) -> Object:
    """Returns the main container of a pod, not the tool runner beside it."""
    (container,) = (
        candidate for name, candidate in containers_of(workload).items() if name != RUNNER
    )
    return dict(container)


def environment_of(
    objects: list[Object], workload: Object, container: Object | None = None
) -> dict[str, str]:
    """Returns the environment of a workload; secrets as ``<secret>/<key>``, fields of the pod as
    their paths.
    """
    maps = of_kind(objects, "ConfigMap")
    container = container or container_of(workload)
    environment: dict[str, str] = {}
    # The content of a Secret is not part of the manifests.
    for source in (s for s in container.get("envFrom", ()) if "configMapRef" in s):
        environment |= maps[source["configMapRef"]["name"]]["data"]
    for entry in container.get("env", ()):
        if "value" in entry:
            environment[entry["name"]] = entry["value"]
        elif "fieldRef" in entry["valueFrom"]:
            environment[entry["name"]] = entry["valueFrom"]["fieldRef"]["fieldPath"]
        else:
            reference = entry["valueFrom"]["secretKeyRef"]
            environment[entry["name"]] = f"{reference['name']}/{reference['key']}"
    return environment


def rendered_with(component: Path, folder: Path) -> list[Object] | None:
    """Returns the base with a component, as `rendered` does, from an overlay that it writes."""
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(BASE, folder.resolve())],
        "components": [os.path.relpath(component, folder.resolve())],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    return rendered(folder)


def rendered(folder: Path) -> list[Object] | None:
    """Returns the objects that `kubectl kustomize` renders of a folder; None without kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return None
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, check=True, text=True, timeout=60
    )
    return [document for document in yaml.load_all(done.stdout, _LOADER) if document]
