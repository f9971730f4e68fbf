"""`requirements.lock` is complete, pinned and hashed, and names no index."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from unit.house.repository import REPOSITORY

_LOCK = (REPOSITORY / "requirements.lock").read_text("utf-8")
_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
_CLIENT = tomllib.loads((REPOSITORY / "clients/python/pyproject.toml").read_text("utf-8"))


def entries() -> list[tuple[Requirement, list[str]]]:
    """The pins and their hashes."""
    joined = _LOCK.replace("\\\n", " ")
    lines = []
    for line in joined.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+--hash=", line.strip())
        lines.append((Requirement(requirement), hashes))
    return lines


def pins() -> dict[str, list[Version]]:
    """Versions by name; more than one where the version of Python decides."""
    versions: dict[str, list[Version]] = defaultdict(list)
    for requirement, _ in entries():
        (specifier,) = requirement.specifier
        versions[canonicalize_name(requirement.name)].append(Version(specifier.version))
    return versions


def test_everything_is_pinned_and_hashed() -> None:
    assert len(entries()) > 60
    for requirement, hashes in entries():
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement
        assert "*" not in specifier.version
        assert requirement.url is None
        assert hashes, requirement
        for hash_ in hashes:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", hash_), requirement


def test_the_lock_names_no_host_and_no_option() -> None:
    assert "://" not in _LOCK
    options = set(re.findall(r"(?<!\S)--?[a-z-]+", _LOCK))
    assert options == {"--hash"}


_OWN = "strata-client"
_DEPENDENCIES = [
    *(wanted for wanted in _PROJECT["project"]["dependencies"] if Requirement(wanted).name != _OWN),
    *_PROJECT["dependency-groups"]["dev"],
    *_CLIENT["project"]["dependencies"],
]


def test_the_server_depends_on_the_client_of_the_same_version() -> None:
    assert f"{_OWN}=={_CLIENT['project']['version']}" in _PROJECT["project"]["dependencies"]
    assert _CLIENT["project"]["version"] == _PROJECT["project"]["version"]
    assert _OWN not in pins(), "the package is installed from its folder"


def test_the_lock_satisfies_the_project() -> None:
    locked = pins()
    for requirement in map(Requirement, _DEPENDENCIES):
        versions = locked[canonicalize_name(requirement.name)]
        assert versions, f"{requirement.name} is not locked: run `make lock`"
        for version in versions:
            assert requirement.specifier.contains(version, prereleases=True), requirement


def test_the_generated_code_runs_with_the_locked_protobuf() -> None:
    header = re.compile(r"# Protobuf Python Version: (\S+)")
    files = list((REPOSITORY / "clients/python/strata/api").rglob("*_pb2.py"))
    assert files
    (locked,) = pins()["protobuf"]
    for path in files:
        match = header.search(path.read_text("utf-8"))
        assert match is not None, path
        made_for = Version(match.group(1))
        assert made_for <= locked, path
        assert made_for.major == locked.major, path
