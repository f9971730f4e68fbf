"""Functions extracted from generated modules compile and behave as in their module."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.client import tool_source

# Text of a statement by kind; `{i}` is its number, `{use}` an expression of earlier ones.
KINDS = {
    "constant": ("A{i} = {use}", "A{i}"),
    "typed": ("A{i}: int = {use}", "A{i}"),
    "tuple": ("A{i}, B{i} = {use}, 1", "(A{i} + B{i})"),
    "again": ("A{i} = 1\nA{i} += {use}", "A{i}"),
    "table": ('T{i} = {{}}\nT{i}["k"] = {use}', 'T{i}["k"]'),
    "list": ("L{i} = []\nfor j in range(3):\n    L{i}.append(j + {use})", "sum(L{i})"),
    "either": ("if {use} > 9:\n    E{i} = 1\nelse:\n    E{i} = {use}", "E{i}"),
    "tried": ("try:\n    V{i} = 1 // ({use})\nexcept ZeroDivisionError:\n    V{i} = 7", "V{i}"),
    "helper": ("def f{i}(x=1):\n    '''Does.'''\n    return x + {use}", "f{i}(2)"),
    "later": (
        "def g{i}(n):\n    return h{i}(n) if n else {use}\ndef h{i}(n):\n    return g{i}(0)",
        "g{i}(1)",
    ),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass D{i}:\n    value: int = {use}",
        "D{i}().value",
    ),
    "method": (
        "class M{i}:\n    x = {use}\n    def go(self):\n        return self.x + {use}",
        "M{i}().go()",
    ),
    "comprehension": ("C{i} = {{j: j + {use} for j in range(2)}}", "C{i}[1]"),
    "lambda": ("K{i} = lambda x: x * ({use})", "K{i}(2)"),
    "module": ("import math as m{i}, json as unused{i}", "m{i}.floor(2.5)"),
}


@dataclass(frozen=True)
class Part:
    """A statement of a module, and the names that it uses."""

    kind: str
    uses: tuple[int, ...]


@st.composite
def modules(draw: Any) -> tuple[list[Part], tuple[int, ...]]:
    parts: list[Part] = []
    for number in range(draw(st.integers(1, 7))):
        earlier = st.lists(st.integers(0, number - 1), max_size=2) if number else st.just([])
        parts.append(Part(draw(st.sampled_from(sorted(KINDS))), tuple(draw(earlier))))
    used = st.lists(st.integers(0, len(parts) - 1), max_size=3)
    return parts, tuple(draw(used))


def expression(parts: list[Part], uses: tuple[int, ...]) -> str:
    return " + ".join(["3", *(KINDS[parts[i].kind][1].format(i=i) for i in uses)])


def text_of(parts: list[Part], used: tuple[int, ...]) -> str:
    pieces = [
        KINDS[part.kind][0].format(i=i, use=expression(parts, part.uses))
        for i, part in enumerate(parts)
    ]
    pieces.insert(
        len(pieces) // 2, f"def tool(x: int) -> list:\n    return [x, {expression(parts, used)}]"
    )
    pieces.append("def unused():\n    return nobody_knows\n")
    pieces.append("if __name__ == '__main__':\n    raise SystemExit(nobody_knows)\n")
    return "\n".join(pieces)


def reached(parts: list[Part], used: tuple[int, ...]) -> set[int]:
    numbers: set[int] = set()
    waiting = list(used)
    while waiting:
        number = waiting.pop()
        if number not in numbers:
            numbers.add(number)
            waiting.extend(parts[number].uses if parts[number].kind != "module" else ())
    return numbers


def original(text: str) -> tuple[str, Any]:
    """Loads the module from a file; returns the extracted source and the result of the tool."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "original.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("original", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["original"] = module
        try:
            spec.loader.exec_module(module)
            return tool_source(module.tool, packages=False), module.tool(5)
        finally:
            del sys.modules["original"]


@pytest.mark.child_process
@settings(max_examples=25)
@given(modules())
def test_the_extracted_source_behaves_the_same_in_a_new_interpreter(
    module: tuple[list[Part], tuple[int, ...]],
) -> None:
    source, expected = original(text_of(*module))
    program = f"{source}\nimport json as last\nprint(last.dumps(tool(5)))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\n{source}"
    assert json.loads(done.stdout) == expected


@settings(max_examples=60)
@given(modules())
def test_only_statements_that_the_function_uses_are_extracted(
    module: tuple[list[Part], tuple[int, ...]],
) -> None:
    parts, used = module
    source, _ = original(text_of(parts, used))
    tree = ast.parse(source)
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert "tool" in defined
    assert "unused" not in defined
    assert "nobody_knows" not in source
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | defined
    for number, part in enumerate(parts):
        own = KINDS[part.kind][1].format(i=number).strip("(").partition("(")[0]
        own = own.partition("[")[0].partition(".")[0].partition(" ")[0]
        if part.kind == "list":
            own = f"L{number}"
        if part.kind not in {"dataclass", "method", "module"}:
            assert (own in named) == (number in reached(parts, used)), (own, source)


def test_variables_of_comprehensions_are_not_names_of_the_module() -> None:
    text = """
j = 2
UNUSED = {j: [j for j in range(2)] for j in range(3)}


def tool(x: int) -> list:
    return [x, j]
"""
    source, result = original(text)
    assert result == [5, 2]
    assert "UNUSED" not in source
