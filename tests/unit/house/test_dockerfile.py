"""The Dockerfile matches the project; these tests do not build the image."""

from __future__ import annotations

import re
import tomllib

from packaging.specifiers import SpecifierSet

from strata.gateway.settings import DEFAULT_HTTP_PORT
from unit.house.repository import REPOSITORY
from unit.k8s.manifests import BASE, container_of, load, of_kind, pod_of, services

_DOCKERFILE = (REPOSITORY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
_INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in _DOCKERFILE.splitlines()
    if line.strip() and not line.startswith("#")
]


def instructions(name: str) -> list[str]:
    return [rest for word, rest in _INSTRUCTIONS if word == name]


def environment() -> dict[str, str]:
    return dict(re.findall(r'(\w+)="?([^\s"]+)"?', " ".join(instructions("ENV"))))


def test_both_stages_have_the_same_supported_python() -> None:
    (argument,) = [
        instruction
        for instruction in instructions("ARG")
        if instruction.startswith("PYTHON_VERSION=")
    ]
    version = argument.partition("=")[2]
    assert SpecifierSet(_PROJECT["project"]["requires-python"]).contains(version)
    images = {instruction.partition(" AS ")[0] for instruction in instructions("FROM")}
    assert images == {"python:${PYTHON_VERSION}-slim"}


def test_dependencies_are_installed_with_the_versions_of_the_lock() -> None:
    installs = [
        instruction for instruction in instructions("RUN") if "uv pip install" in instruction
    ]
    dependencies, project = installs
    assert "--verify-hashes" in dependencies
    assert "--constraint requirements.lock" in dependencies
    assert "--no-deps" in project


def test_copied_files_are_those_of_the_build_context() -> None:
    ignore = (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignore
    let_in = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        source
        for instruction in instructions("COPY")
        if not instruction.startswith("--from")
        for source in instruction.split()[:-1]
    }
    assert copied == let_in
    assert all((REPOSITORY / name).exists() for name in let_in)


def test_every_root_and_file_of_the_wheel_is_in_the_context() -> None:
    copied = " ".join(instructions("COPY"))
    roots = {
        package.partition("/")[0]
        for package in _PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    }
    files = {_PROJECT["project"]["readme"], *_PROJECT["project"]["license-files"]}
    for name in roots | files:
        assert re.search(rf"(?:^|\s){re.escape(name)}(?:\s|$)", copied), name


def test_the_image_runs_as_the_user_of_the_manifests() -> None:
    user = instructions("USER")[-1]
    for deployment in of_kind(load(BASE), "Deployment").values():
        context = pod_of(deployment)["securityContext"]
        assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
        assert container_of(deployment)["securityContext"]["readOnlyRootFilesystem"] is True
        mounts = container_of(deployment)["volumeMounts"]
        assert instructions("WORKDIR")[-1] in {mount["mountPath"] for mount in mounts}


def test_every_service_listens_where_it_is_exposed() -> None:
    exposed = {int(port) for instruction in instructions("EXPOSE") for port in instruction.split()}
    assert exposed == {service.port for service in services().values()} | {DEFAULT_HTTP_PORT}
    for service in services().values():
        assert environment()[f"STRATA_{service.name.upper()}_HOST"] == "0.0.0.0"
    known = {f"STRATA_{service.name.upper()}_HOST" for service in services().values()}
    assert {name for name in environment() if name.startswith("STRATA_")} == known
