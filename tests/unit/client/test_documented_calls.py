"""The Python programs of the documents compile, and the names and calls in them exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import MagicMock

import pytest

from strata.client import Client

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "clients" / "python" / "README.md",
    ]
)
_PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Clients of other libraries that a program may call `client`.
_OTHER_CLIENTS = {"chat"}

PROGRAMS = [
    pytest.param(program, id=f"{page.stem} {number}")
    for page in PAGES
    for number, program in enumerate(_PROGRAM.findall(page.read_text("utf-8")), start=1)
]


def unknown_names(program: str) -> list[str]:
    """Returns the imports of a program that do not exist, and its calls that the client refuses.

    Raises:
        SyntaxError: It is not Python.
    """
    compile(program, "program", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    unknown = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("strata."):
            unknown += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if not _is_in_module(str(node.module), alias.name)
            ]
        if isinstance(node, ast.Call):
            path = ast.unparse(node.func).split(".")
            if path[0] == "client" and path[1] not in _OTHER_CLIENTS:
                keywords = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
                if not _is_accepted(path[1:], keywords):
                    unknown.append(ast.unparse(node))
    return unknown


def _is_in_module(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(
            importlib.import_module(f"{module}.{name}")
        )
    except ModuleNotFoundError:
        return False


def _is_accepted(path: list[str], keywords: list[str]) -> bool:
    owner: Any = Client
    if len(path) == 2:
        service = getattr(Client, path[0], None)
        if service is None:
            return False
        # The methods of the stub are attributes of the object, named as in the contract.
        owner = get_type_hints(service.func)["return"](MagicMock())
    method = getattr(owner, path[-1], None)
    if method is None or path[-1][0].isupper():
        return method is not None and not keywords
    return set(keywords) <= set(inspect.signature(method).parameters)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_is_valid(program: str) -> None:
    assert unknown_names(program) == []


def test_documents_have_programs() -> None:
    assert len(PROGRAMS) > 15


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("from strata.client import Missing", ["strata.client.Missing"]),
        ("from strata.missing import a", ["strata.missing.a"]),
        ("client.agents.missing()", ["client.agents.missing()"]),
        ("client.runs.MissingCall(a)", ["client.runs.MissingCall(a)"]),
        ("client.missing.create()", ["client.missing.create()"]),
        ("await client.agents.create(missing=1)", ["client.agents.create(missing=1)"]),
        ("await client.agents.create(name='a'); client.runs.SendMessage(a)", []),
        ("from strata.api.gateway.v1 import run_service_pb2", []),
    ],
)
def test_wrong_names_are_recognized(program: str, expected: list[str]) -> None:
    assert unknown_names(program) == expected
