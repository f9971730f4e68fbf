"""Texts that no file of the repository may contain."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from unit.house.repository import texts

# Composed here, so that this file does not contain the searched text.
_HOSTS = {
    ".".join(labels): r"(?<![\w])" + re.escape(".".join(labels))
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
}
_MACHINE = {
    **{f"/{name}" + "/": rf"(?<![\w./<>*-])/{name}/" for name in ("root", "work")},
    **{f"/{name}" + "/": rf"(?<![\w./<>*-])/{name}/[A-Za-z]" for name in ("home", "Users")},
    ":\\" + "Users": r"[A-Z]:\\Users",
}


def matches_of(patterns: Mapping[str, str], files: Mapping[str, str]) -> list[str]:
    """Returns where patterns match.

    Args:
        patterns: By a part of all texts that they match, which is looked for first.
        files: Texts by the names of their files.
    """
    return [
        f"{name}: {match.group()}"
        for name, text in files.items()
        for part, pattern in patterns.items()
        if part in text and (match := re.search(pattern, text))
    ]


def test_the_repository_files_are_found() -> None:
    files = texts()
    assert {"pyproject.toml", "requirements.lock", "README.md", "Dockerfile"} <= set(files)
    assert any(name.startswith("protos/") for name in files)


def test_no_file_names_a_package_registry() -> None:
    assert matches_of(_HOSTS, texts()) == []


def test_no_file_names_a_path_of_a_developers_machine() -> None:
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
def test_the_patterns_match_forbidden_texts(patterns: Mapping[str, str], text: str) -> None:
    (match,) = matches_of(patterns, {"x": text})
    assert match.removeprefix("x: ") in text
