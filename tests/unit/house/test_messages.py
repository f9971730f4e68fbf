"""Messages of programs do not name files that an installed package lacks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from unit.house.repository import modules, name_of, trees

_FOLDERS = "docs|tests|k8s|benchmarks|protos"
_REPOSITORY_PATH = re.compile(rf"\b({_FOLDERS})/[\w-]+[/\w.-]*\.\w+")


def texts(tree: ast.AST) -> Iterator[str]:
    """The string constants of a module apart from docstrings."""
    # A string that stands alone as a statement is a docstring.
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if text and id(node) not in docstrings:
            yield str(node.value)  # type: ignore[attr-defined]


def test_no_message_names_a_file_of_the_repository() -> None:
    messages = [
        (name_of(path), text)
        for path, tree in trees(modules(), re.compile(rf"\b({_FOLDERS})\b"))
        for text in texts(tree)
        if _REPOSITORY_PATH.search(text)
    ]
    assert len(modules()) > 100
    assert messages == []
