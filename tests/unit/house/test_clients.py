"""The clients in other languages have every public service, and nothing else."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from strata.gateway.registry import public_services
from unit.house.repository import REPOSITORY, tracked

CLIENTS = REPOSITORY / "clients"
PROTOS = REPOSITORY / "protos"


def test_the_client_in_java_is_generated_from_the_public_contracts() -> None:
    pom = ET.parse(CLIENTS / "java" / "pom.xml")
    maven = {"": "http://maven.apache.org/POM/4.0.0"}
    plugins = pom.findall("build/plugins/plugin/configuration/excludes", maven)
    excluded = [exclude.text for plugin in plugins for exclude in plugin]
    generator = runpy.run_path(str(CLIENTS / "generate.py"))
    contracts = {str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto")}
    assert sorted(contracts - set(generator["public_files"]())) == excluded


@pytest.mark.parametrize("file", ["typescript/src/services.ts", "go/strata/client.go"])
def test_a_client_has_every_public_service(file: str) -> None:
    text = (CLIENTS / file).read_text("utf-8")
    services = [service.name for service in public_services()]
    assert services
    assert [name for name in services if name not in text] == []


@pytest.mark.parametrize(
    "lock", [path for path in tracked() if path.name == "package-lock.json"], ids=str
)
def test_npm_lock_files_have_hashes_and_no_addresses(lock: Path) -> None:
    packages = json.loads(lock.read_text("utf-8"))["packages"]
    packages.pop("")
    assert packages
    assert [name for name, package in packages.items() if "integrity" not in package] == []
    assert [name for name, package in packages.items() if "resolved" in package] == []
