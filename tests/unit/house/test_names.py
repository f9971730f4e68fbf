"""Names of values: each says what the value holds."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from unit.house.repository import name_of, sources, texts, tracked, trees

# Participles and pronouns: `found` may be rows, a match or a path. The reader has to look it up.
_SAY_NOTHING = frozenset({"told", "found", "given", "said", "each"})
# What may follow a name in the code that binds it. Few modules have such a text in their prose.
_BINDING = re.compile(
    rf"\b_*(?:{'|'.join(sorted(_SAY_NOTHING))})_*\b(?=\s*(?:[^\w\s.\['\"`]|(?:in|if|as)\b|#|\\|$))"
)
# The same concept at both ends of a contract; each side declares the fields that it uses.
_ON_BOTH_SIDES = frozenset(
    {
        "ApiError",
        "CallingGroup",
        "ChatMessage",
        "ChatRequest",
        "CommittedStep",
        "FileLimits",
        "ForkServer",
        "Indexes",
        "LeaseLostError",
        "Message",
        "MessageBuffer",
        "OlderLines",
        "Origin",
        "Page",
        "PromptLimit",
        "RetentionWorker",
        "RunFailedError",
        "RunFailure",
        "RunFollower",
        "TendedTurn",
        "Tool",
        "ToolCall",
        "ToolError",
        "ToolRule",
        "TranscriptRead",
        "Window",
    }
)
_CLASS = re.compile(r"^class [A-Z]", re.MULTILINE)
# A service was a "room" once. The word is left where a text of a test or a benchmark has it.
_FORMER = re.compile(r"\b(?:room|rooms|Room|Rooms|ROOM|ROOMS)\b|(?<![a-z])[Rr]oom(?=[A-Z])")


def _targets(node: ast.AST) -> Iterator[str]:
    """Yields the names that a node gives to values, functions and attributes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name


def _empty_names(tree: ast.AST) -> list[str]:
    return [
        f"{getattr(node, 'lineno', 0)}: {name}"
        for node in ast.walk(tree)
        for name in _targets(node)
        if name.strip("_") in _SAY_NOTHING
    ]


def test_names_describe_their_values() -> None:
    modules = (path for path in tracked() if path.suffix == ".py")
    violations = [
        f"{name_of(path)}:{name}"
        for path, tree in trees(modules, _BINDING)
        for name in _empty_names(tree)
    ]
    assert violations == []


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "def f(given): ...",
        "def said(): ...",
        "self._told = 1",
        "[each for each in x]",
        "for place, each in enumerate(x): ...",
        "with f() as told: ...",
        "if (found := f()): ...",
        "try: ...\nexcept E as told: ...",
    ],
)
def test_an_empty_name_is_detected(source: str) -> None:
    assert _BINDING.search(source)
    assert len(_empty_names(ast.parse(source))) == 1


@pytest.mark.parametrize("source", ["row = 1", "reply.found", "f(found=1)", "text.given()"])
def test_names_of_other_libraries_are_not_reported(source: str) -> None:
    assert _empty_names(ast.parse(source)) == []


def test_a_class_name_has_one_meaning() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees(sources(), _CLASS):
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef) and "generated" not in path.parts:
                modules[node.name].append(name_of(path))
    repeated = {
        name: places for name, places in modules.items() if len(places) > 1 and name[0] != "_"
    }
    assert {name: repeated[name] for name in repeated.keys() - _ON_BOTH_SIDES} == {}
    assert _ON_BOTH_SIDES - repeated.keys() == set()


def test_deployed_parts_are_called_services() -> None:
    code = {
        name: text
        for name, text in texts().items()
        if name.endswith((".py", ".proto", ".md", ".yaml", ".toml", ".env"))
        and name != "tests/unit/house/test_names.py"
    }
    assert [name for name, text in code.items() if _FORMER.search(text)] == []
