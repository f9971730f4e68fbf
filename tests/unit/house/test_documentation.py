"""The documents are complete, up to date, and lead somewhere."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from unit.house.repository import REPOSITORY, tracked
from unit.k8s.manifests import services

DOCUMENTS = [path for path in tracked() if path.suffix == ".md"]
README = (REPOSITORY / "README.md").read_text("utf-8")
CONFIGURATION = (REPOSITORY / "docs" / "configuration.md").read_text("utf-8")
_LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
_GENERATOR = runpy.run_path(str(REPOSITORY / "docs" / "generate_configuration.py"))


def test_the_configuration_is_what_the_settings_say() -> None:
    assert _GENERATOR["document"]() == CONFIGURATION, "run `python docs/generate_configuration.py`"


def test_every_setting_is_documented() -> None:
    classes = _GENERATOR["settings_classes"]()
    assert {service.settings for service in services().values()} <= set(classes)
    for cls in classes:
        for name in cls.model_fields:
            prefix = cls.model_config["env_prefix"]
            common = f"STRATA_<SERVICE>_{name.upper()}"
            assert f"`{prefix}{name.upper()}" in CONFIGURATION or f"`{common}" in CONFIGURATION, (
                f"{cls.__name__}.{name}"
            )


def test_the_readme_names_settings_that_exist() -> None:
    known = set(re.findall(r"STRATA_[A-Z_]+", CONFIGURATION))
    for name in re.findall(r"`(STRATA_[A-Z_]+)(?:=[^`]*)?`", README):
        assert name in known, name


def test_the_readme_knows_every_service_and_its_port() -> None:
    for service in services().values():
        assert re.search(rf"\| `{service.name}` \| {service.port} \|", README), service.name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_to_files(document: Path) -> None:
    for target in _LINK.findall(document.read_text("utf-8")):
        if "://" in target:
            continue
        assert (document.parent / target).exists(), target


def test_make_targets_that_documents_name_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    for document in DOCUMENTS:
        for name in re.findall(r"`make ([a-z0-9-]+)", document.read_text("utf-8")):
            assert name in targets, f"{document.name}: make {name}"


def test_decisions_are_numbered_once_and_say_what_was_decided() -> None:
    decisions = sorted((REPOSITORY / "docs" / "decisions").glob("*.md"))
    numbers = [path.name[:4] for path in decisions]
    assert len(set(numbers)) == len(numbers) > 3
    for path in decisions:
        text = path.read_text("utf-8")
        assert text.startswith(f"# {path.name[:4]}: "), path.name
        assert "**Decision.**" in text, path.name


def test_the_changelog_knows_the_release() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    changelog = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)
    assert sections[0] == "Unreleased"
    # What is being made carries its number before it is released.
    assert project["version"] in sections or len(sections) == 1
