"""The documents are complete and up to date, and their links work."""

from __future__ import annotations

import re
import runpy
import tomllib
from functools import cache
from typing import Any

import pytest

from strata.shared.metric_names import METRICS
from unit.house.repository import (
    REPOSITORY,
    name_of,
    sections,
    sections_of,
    text_of,
    texts,
    tracked,
)
from unit.k8s.manifests import services

DOCUMENTS = [path for path in tracked() if path.suffix == ".md"]
README = (REPOSITORY / "README.md").read_text("utf-8")
CONFIGURATION = (REPOSITORY / "docs" / "configuration.md").read_text("utf-8")
_LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
_SETTING = re.compile(r"(?<!\w)STRATA_(?:<SERVICE>_)?[A-Z0-9_]+")
_PAGE = re.compile(r"(?<![\w/])docs/[\w./-]+\.md\b(?:#([\w-]+))?")


@cache
def generator() -> dict[str, Any]:
    """Returns the program that writes the page of the settings; it imports all services."""
    return runpy.run_path(str(REPOSITORY / "docs" / "generate_configuration.py"))


def test_the_configuration_page_is_up_to_date() -> None:
    assert generator()["document"]() == CONFIGURATION, "run `python docs/generate_configuration.py`"


def test_the_guide_has_the_table_of_the_metrics() -> None:
    program = runpy.run_path(str(REPOSITORY / "docs" / "generate_metrics.py"))
    page = program["TARGET"].read_text("utf-8")
    assert program["document"](page) == page, "run `make docs`"
    assert all(f"| `{name}` |" in page for name in METRICS)


def test_metrics_that_documents_name_exist() -> None:
    suffixes = ("", "_bucket", "_count", "_sum")
    known = {f"{name}{suffix}" for name in METRICS for suffix in suffixes}
    guide = (REPOSITORY / "docs" / "guides" / "metrics.md").read_text("utf-8")
    named = set(re.findall(r"\bstrata_[a-z_]+_[a-z]+\b", guide))
    assert len(named) > 20
    assert named <= known


def test_every_setting_is_documented() -> None:
    classes = generator()["settings_classes"]()
    assert {service.settings for service in services().values()} <= set(classes)
    for cls in classes:
        for name in cls.model_fields:
            prefix = cls.model_config["env_prefix"]
            common = f"STRATA_<SERVICE>_{name.upper()}"
            assert f"`{prefix}{name.upper()}" in CONFIGURATION or f"`{common}" in CONFIGURATION, (
                f"{cls.__name__}.{name}"
            )


@cache
def settings_names() -> frozenset[str]:
    """Returns the variables of all settings; ``STRATA_<SERVICE>_X`` for those of every service."""
    names = set(_SETTING.findall(CONFIGURATION))
    for cls in generator()["settings_classes"]():
        names |= {f"{cls.model_config['env_prefix']}{name.upper()}" for name in cls.model_fields}
    return frozenset(name.partition("__")[0] for name in names)


def unknown_settings(text: str) -> set[str]:
    """Returns the variables in a text that are no settings.

    A name that ends with an underscore stands for the variables that begin with it. A part after
    two underscores is a key within a setting.
    """
    known = settings_names()
    return {
        name
        for name in set(_SETTING.findall(text))
        if name.partition("__")[0] not in known
        and not (name.endswith("_") and any(other.startswith(name) for other in known))
    }


def test_documents_name_settings_that_exist() -> None:
    # The changelog names settings that were removed.
    unknown = {
        name_of(page): unknown_settings(text_of(page))
        for page in DOCUMENTS
        if page.name != "CHANGELOG.md"
    }
    assert {name: settings for name, settings in unknown.items() if settings} == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("STRATA_NO_SUCH_SETTING=1", {"STRATA_NO_SUCH_SETTING"}),
        ("`STRATA_<SERVICE>_NO_SUCH_SETTING`", {"STRATA_<SERVICE>_NO_SUCH_SETTING"}),
        ("`STRATA_NO_SUCH_…`", {"STRATA_NO_SUCH_"}),
        ("STRATA_DATA, STRATA_<SERVICE>_TARGETS__GATEWAY, STRATA_RECALL_…", set()),
    ],
)
def test_unknown_settings_are_found(text: str, expected: set[str]) -> None:
    assert unknown_settings(text) == expected


def test_the_readme_names_every_service_and_its_port() -> None:
    for service in services().values():
        assert re.search(rf"\| `{service.name}` \| {service.port} \|", README), service.name


def test_links_point_to_existing_files_and_headings() -> None:
    broken = []
    for document in DOCUMENTS:
        for target, anchor in _LINK.findall(text_of(document)):
            if "://" in target:
                continue
            page = (document.parent / target).resolve() if target else document
            if not page.exists() or (
                anchor and page.suffix == ".md" and anchor not in sections_of(page)
            ):
                broken.append(f"{name_of(document)}: {target}#{anchor}")
    assert broken == []


def test_pages_that_any_file_names_exist() -> None:
    named = 0
    # Tests name files of the users' own folders, which may be called docs, too.
    outside_tests = {name: text for name, text in texts().items() if not name.startswith("tests/")}
    for name, text in outside_tests.items():
        for match in _PAGE.finditer(text):
            named += 1
            page = REPOSITORY / match.group().partition("#")[0]
            assert page.is_file(), f"{name}: {match.group()}"
            anchor = match.group(1)
            assert anchor is None or anchor in sections_of(page), match.group()
    assert named > 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "# One turn\n## `local-demo`\n### Add, and share!",
            {"one-turn", "local-demo", "add-and-share"},
        ),
        ("## Files\n## Files", {"files", "files-1"}),
        ("```\n# a comment\n```\n# [Name](x.md)", {"name"}),
    ],
)
def test_anchors_are_those_of_headings(text: str, expected: set[str]) -> None:
    assert set(sections(text)) == expected


def test_glossary_is_in_alphabetical_order() -> None:
    glossary = (REPOSITORY / "docs" / "glossary.md").read_text("utf-8")
    terms = [term.casefold() for term in re.findall(r"^\*\*(.+?)\.?\*\*", glossary, re.MULTILINE)]
    assert len(terms) > 50
    assert terms == sorted(set(terms))


def test_make_targets_that_documents_name_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    for document in DOCUMENTS:
        for name in re.findall(r"`make ([a-z0-9-]+)", text_of(document)):
            assert name in targets, f"{document.name}: make {name}"


def test_the_changelog_has_the_release() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    changelog = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)
    assert sections[0] == "Unreleased"
    # Work in progress has its number before it is released.
    assert project["version"] in sections or len(sections) == 1
