"""What no file of the repository may say."""

from __future__ import annotations

import re

import pytest

from unit.house.repository import texts

# Written so that this file does not contain what it looks for.
_HOSTS = (
    "pypi" r"\.org",
    "python" r"hosted\.org",
    "npmjs" r"\.(?:org|com)",
    "proxy\\.golang" r"\.org",
    "(?<![\\w.])(?:docker|ghcr|quay|gcr)" r"\.io/",
    "crates" r"\.io",
)
_MACHINE = (
    "/ro" r"ot/",
    r"(?<![\w./<])/wo" r"rk/",
    r"/ho" r"me/[a-z]",
    r"/Us" r"ers/[A-Za-z]",
    r"[A-Z]:\\Us" r"ers",
)


def found(patterns: tuple[str, ...], files: dict[str, str]) -> list[str]:
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
    assert found(_HOSTS, texts()) == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    assert found(_MACHINE, texts()) == []


@pytest.mark.parametrize(
    ("patterns", "text"),
    [
        (_HOSTS, "index-url = https://" + "pypi" + ".org/simple"),
        (_HOSTS, "image: " + "ghcr" + ".io/somebody/strata"),
        (_MACHINE, "cd " + "/wo" + "rk/main"),
        (_MACHINE, "open('" + "/ho" + "me/anna/x')"),
    ],
)
def test_the_search_finds(patterns: tuple[str, ...], text: str) -> None:
    assert found(patterns, {"x": text}) == [f"x: {match}" for match in _matches(patterns, text)]


def _matches(patterns: tuple[str, ...], text: str) -> list[str]:
    match = re.search("|".join(patterns), text)
    assert match is not None
    return [match.group()]
