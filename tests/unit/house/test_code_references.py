"""Files, functions and classes that the design pages name exist.

A page names a file by its path from the top of the repository or below `strata/` in one of the
source roots, and something in it by ``path::name`` or ``path::Class.member``. ``Class.member``
alone stands for a class of a module that the page names, or for an RPC.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from unit.house.repository import REPOSITORY, ROOTS, name_of, text_of, tracked

PAGES = [
    REPOSITORY / "docs" / "architecture.md",
    REPOSITORY / "docs" / "glossary.md",
    *sorted((REPOSITORY / "docs" / "how-to").glob("*.md")),
]
DECISIONS = sorted((REPOSITORY / "docs" / "decisions").glob("0*.md"))
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"([\w./-]+\.(?:py|proto|md|toml|yaml|env))(?:::([\w.]+))?")
_FOLDER = re.compile(r"[\w.-]+(?:/[\w.-]+)*/")
_MEMBER = re.compile(r"[A-Z]\w+\.\w+")
# Names of files that every service has.
_IN_EACH_SERVICE = {"main.py", "settings.py", "migrations/__init__.py", "store/housekeeping.py"}


@cache
def resolve(path: str) -> Path | None:
    """Returns the file or folder of a reference; None if there is none, or several."""
    top = REPOSITORY / path
    if top.exists():
        return top
    places = [REPOSITORY / root / "strata" / path for root in ROOTS]
    existing = [place for place in places if place.exists()]
    return existing[0] if len(existing) == 1 else None


@cache
def names_in(path: Path) -> frozenset[str]:
    """Returns the functions, classes, constants and members that a module defines."""
    names: set[str] = set()
    for node in ast.parse(text_of(path)).body:
        names |= _defined(node)
        if isinstance(node, ast.ClassDef):
            members = (name for child in node.body for name in _defined(child))
            names |= {f"{node.name}.{member}" for member in members}
    return frozenset(names)


def _defined(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()


@cache
def rpcs() -> frozenset[str]:
    """Returns every RPC of the protos as ``Service.Method``."""
    calls = set()
    for path in (REPOSITORY / "protos").rglob("*.proto"):
        for service, body in re.findall(
            r"^service (\w+) \{(.*?)^\}", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            calls |= {
                f"{service}.{rpc}" for rpc in re.findall(r"^  rpc (\w+)\(", body, re.MULTILINE)
            }
    return frozenset(calls)


def missing(text: str) -> list[str]:
    """Returns the references of a page to nothing that exists."""
    spans = _CODE.findall(_FENCE.sub("", text))
    files = [match for match in map(_FILE.fullmatch, spans) if match is not None]
    modules = {path for match in files if (path := resolve(match[1])) and path.suffix == ".py"}
    members = {name for path in modules for name in names_in(path)} | rpcs()
    return [
        *(match[0] for match in files if not _leads_somewhere(match[1], match[2])),
        *(span for span in spans if _FOLDER.fullmatch(span) and not _is_folder(span)),
        *(
            span
            for span in spans
            if _MEMBER.fullmatch(span) and not _FILE.fullmatch(span) and span not in members
        ),
    ]


def _leads_somewhere(path: str, name: str | None) -> bool:
    if "/" not in path or path in _IN_EACH_SERVICE:
        return True
    file = resolve(path)
    return file is not None and (name is None or name in names_in(file))


def _is_folder(path: str) -> bool:
    """Returns whether a folder exists: at the root, or in some service."""
    return resolve(path) is not None or any(REPOSITORY.glob(f"*/strata/*/{path}"))


def test_references_to_code_exist() -> None:
    references = {name_of(page): missing(text_of(page)) for page in PAGES}
    assert {name: gone for name, gone in references.items() if gone} == {}


def test_files_that_a_decision_names_exist() -> None:
    """A decision may omit the first folders of a path."""
    folders = [name_of(path).split("/") for path in tracked()]
    endings = {"/".join(parts[start:]) for parts in folders for start in range(len(parts))}
    missing_files = []
    for page in DECISIONS:
        spans = _CODE.findall(_FENCE.sub("", text_of(page)))
        paths = {match[1] for match in map(_FILE.fullmatch, spans) if match and "/" in match[1]}
        missing_files += [f"{page.name}: {path}" for path in sorted(paths - endings)]
    assert missing_files == []


def test_architecture_names_enough_code_to_follow_a_message() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    for service in ("gateway", "agent_loop", "core_memory", "recall", "tool_execution"):
        assert re.search(rf"`{service}/[\w/]+\.py::", text), service


@pytest.mark.parametrize(
    "text",
    [
        "`gateway/runs/no_such_file.py`",
        "`agent_loop/loop/turn.py::NoSuchClass`",
        "`agent_loop/loop/turn.py::Turn.no_such_method`",
        "`agent_loop/loop/turn.py::Turn` and `Turn.no_such_method`",
        "`k8s/no_such_file.yaml`",
        "`RunService.NoSuchCall`",
        "`cli/no_such_folder/`",
    ],
)
def test_wrong_references_are_found(text: str) -> None:
    assert len(missing(text)) == 1


def test_valid_references_are_accepted() -> None:
    text = "`agent_loop/loop/turn.py::Turn` `Turn.run` `RunService.SendMessage` `store/`"
    assert missing(text) == []
