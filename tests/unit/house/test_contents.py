"""What no file of the repository may say."""

from __future__ import annotations

import re

import pytest

from unit.house.repository import texts

# Put together here, so that this file does not contain what it looks for.
_HOSTS = tuple(
    r"(?<![\w])" + re.escape(".".join(labels))
    for labels in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("npmjs", "com"),
        ("proxy", "golang", "org"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("gcr", "io"),
        ("crates", "io"),
    )
)
_MACHINE = (
    r"(?<![\w./<>*-])/(?:root|work)/",
    r"(?<![\w./<>*-])/(?:home|Users)/[A-Za-z]",
    r"[A-Z]:\\Users",
)


def matches_of(patterns: tuple[str, ...], files: dict[str, str]) -> list[str]:
    wanted = re.compile("|".join(patterns))
    return [
        f"{name}: {match.group()}"
        for name, text in files.items()
        for match in [wanted.search(text)]
        if match
    ]


def test_there_is_something_to_look_at() -> None:
    files = texts()
    assert {"pyproject.toml", "requirements.lock", "README.md", "Dockerfile"} <= set(files)
    assert any(name.startswith("protos/") for name in files)


def test_no_file_names_a_package_registry() -> None:
    assert matches_of(_HOSTS, texts()) == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    assert matches_of(_MACHINE, texts()) == []


@pytest.mark.parametrize(
    ("patterns", "text"),
    [
        (_HOSTS, "index-url = https://" + "pypi" + ".org/simple"),
        (_HOSTS, "image: " + "ghcr" + ".io/somebody/strata"),
        (_MACHINE, "cd " + "/work" + "/main"),
        (_MACHINE, "open('" + "/home" + "/anna/x')"),
    ],
)
def test_the_search_finds(patterns: tuple[str, ...], text: str) -> None:
    assert matches_of(patterns, {"x": text}) == [
        f"x: {match}" for match in _matches(patterns, text)
    ]


def _matches(patterns: tuple[str, ...], text: str) -> list[str]:
    match = re.search("|".join(patterns), text)
    assert match is not None
    return [match.group()]
