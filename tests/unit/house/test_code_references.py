"""Files, functions, classes and fields that documents name exist.

A page names a file by its path from the top of the repository or below `strata/` in one of the
source roots, and something in it by ``path::name`` or ``path::Class.member``. ``Class.member``
alone stands for a class of a module that the page names, or for an RPC. The README, the guides and
the decisions may omit the first folders of a path, and name members of any class or message.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from unit.house.repository import REPOSITORY, ROOTS, modules, name_of, text_of, tracked, trees

PAGES = [
    REPOSITORY / "docs" / "architecture.md",
    REPOSITORY / "docs" / "glossary.md",
    *sorted((REPOSITORY / "docs" / "how-to").glob("*.md")),
]
DECISIONS = sorted((REPOSITORY / "docs" / "decisions").glob("0*.md"))
# Pages that name members of classes without the module. The guides to clients in other languages
# name classes of those.
OTHER_PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "docs" / "wire-format.md",
    *DECISIONS,
    *(
        page
        for page in sorted((REPOSITORY / "docs" / "guides").glob("*.md"))
        if page.stem not in {"go", "java", "typescript"}
    ),
]
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"([\w./-]+\.(?:py|proto|md|toml|yaml|env))(?:::([\w.]+))?")
_FOLDER = re.compile(r"[\w.-]+(?:/[\w.-]+)*/")
_MEMBER = re.compile(r"[A-Z]\w+\.\w+")
# Names of files that every service has.
_IN_EACH_SERVICE = {"main.py", "settings.py", "migrations/__init__.py", "store/housekeeping.py"}
_BENCHMARKS = sorted((REPOSITORY / "benchmarks").rglob("*.py"))
# Files that an operator makes.
_OF_THE_OPERATOR = {"k8s/compose/.env", "k8s/compose/models.env"}


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


@cache
def fields() -> frozenset[str]:
    """Returns every field of the protos as ``Message.field``, and ``Rpc.field`` of its messages."""
    names = set()
    for path in (REPOSITORY / "protos").rglob("*.proto"):
        for message, body in re.findall(
            r"^message (\w+) \{(.*?)^\}", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            rpc = re.sub(r"(Request|Response)$", "", message)
            for field in re.findall(r"^ .*?(\w+) = \d+", body, re.MULTILINE):
                names |= {f"{message}.{field}", f"{rpc}.{field}"}
    return frozenset(names)


def unknown_members(text: str) -> list[str]:
    """Returns each ``Class.member`` of a page that no module and no proto has."""
    spans = set(_CODE.findall(_FENCE.sub("", text)))
    members = {span for span in spans if _MEMBER.fullmatch(span) and not _FILE.fullmatch(span)}
    unknown = members - rpcs() - fields()
    classes = {span.partition(".")[0] for span in unknown}
    if not unknown:
        return []
    mention = re.compile(rf"^class ({'|'.join(sorted(classes))})\b", re.MULTILINE)
    known: set[str] = set()
    for _, tree in trees([*modules(), *_BENCHMARKS], mention):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in classes:
                known |= {f"{node.name}.{name}" for name in _members(node)}
    return sorted(unknown - known)


def _members(cls: ast.ClassDef) -> Iterator[str]:
    """Yields the members that the body of a class defines, or sets on ``self``."""
    for node in ast.walk(cls):
        if isinstance(node, ast.stmt):
            yield from _defined(node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


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


def test_files_that_other_pages_name_exist() -> None:
    """A decision or a guide may omit the first folders of a path."""
    files: dict[str, list[Path]] = {}
    for path in tracked():
        parts = name_of(path).split("/")
        for start in range(len(parts)):
            files.setdefault("/".join(parts[start:]), []).append(path)
    missing_files = []
    for page in OTHER_PAGES:
        spans = _CODE.findall(_FENCE.sub("", text_of(page)))
        for match in filter(None, map(_FILE.fullmatch, spans)):
            candidates = files.get(match[1], [])
            if "/" not in match[1] or match[0] in _OF_THE_OPERATOR:
                continue
            if not candidates or (
                match[2] and all(match[2] not in names_in(path) for path in candidates)
            ):
                missing_files.append(f"{page.name}: {match[0]}")
    assert missing_files == []


def test_members_that_other_pages_name_exist() -> None:
    unknown = {name_of(page): unknown_members(text_of(page)) for page in OTHER_PAGES}
    assert {name: members for name, members in unknown.items() if members} == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`StrataError.no_such_member`", ["StrataError.no_such_member"]),
        ("`NoSuchClass.value`", ["NoSuchClass.value"]),
        ("`Run.no_such_field`", ["Run.no_such_field"]),
        ("`StrataError.detail`, `Run.usage`, `ListAgents.agent_ids`, `Turn.run`", []),
    ],
)
def test_unknown_members_are_found(text: str, expected: list[str]) -> None:
    assert unknown_members(text) == expected


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
