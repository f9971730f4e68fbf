"""The module that a function is in, as text."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from strata.client.source.statements import Function, Statement, read_statement


class ModuleText:
    """The statements of a module, and which of them give a name its meaning.

    Args:
        text: The module.
        file: Name of its file, for messages.

    Attributes:
        statements: In their order; what runs only as a program is left out.
        binders: By name, numbers of the statements that bind it.
        changers: By name, numbers of the statements that change what it stands for.
        program_names: Names that only ``if __name__ == "__main__"`` binds.
        stars: Lines of ``import *``.

    Raises:
        SyntaxError: It is no Python.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.tree = ast.parse(text)
        self._text = text
        self._lines = [f"{line}\n" for line in text.split("\n")]
        self.statements: list[Statement] = []
        self.binders: defaultdict[str, list[int]] = defaultdict(list)
        self.changers: defaultdict[str, list[int]] = defaultdict(list)
        self.program_names: set[str] = set()
        self.stars: list[int] = []
        for node in self.tree.body:
            self._read(node)

    @classmethod
    def of(cls, function: FunctionType) -> ModuleText:
        """Returns the module that a function was defined in.

        Raises:
            OSError: There is no text of it.
            SyntaxError: The text is no Python.
        """
        lines, _ = inspect.findsource(function.__code__)
        return cls("".join(lines), Path(function.__code__.co_filename).name)

    def path_to(self, code: CodeType) -> list[ast.AST]:
        """Returns the nodes from the module down to the definition of a function.

        Empty if it is not there, or has other parameters: the file was changed.
        """
        for path in _paths(self.tree, []):
            node = path[-1]
            if isinstance(node, Function) and _is_of(node, code):
                return path
        return []

    def without_body(self, node: Function) -> ModuleText:
        """Returns the module with only head and docstring of a function, in the same lines."""
        first, last = node.body[0], node.body[-1]
        line, column, mark = first.lineno, first.col_offset, "..."
        if ast.get_docstring(node, clean=False) is not None:
            line, column, mark = _end_of(first), first.end_col_offset or 0, "; ..."
        # Columns are counted in bytes.
        kept = self._lines[line - 1].encode()[:column].decode()
        rest = self._lines[_end_of(last) - 1].encode()[last.end_col_offset :].decode()
        blank = "\n" * (_end_of(last) - line)
        text = [*self._lines[: line - 1], kept, mark, blank, rest, *self._lines[_end_of(last) :]]
        return ModuleText("".join(text), self.file)

    def text_of(self, node: ast.stmt) -> str:
        """Returns a statement as it is written, at the left margin, and with its decorators."""
        found = ast.get_source_segment(self._text, node, padded=True) or ""
        decorators = getattr(node, "decorator_list", [])
        if decorators:
            first = min(decorator.lineno for decorator in decorators)
            found = "".join(self._lines[first - 1 : node.lineno - 1]) + found
        if node.col_offset == 0:
            return found
        found = textwrap.dedent(found)
        # Text inside of the statement may not be indented with it.
        try:
            same = ast.dump(ast.parse(found)) == ast.dump(ast.Module([node], []))
        except SyntaxError:
            same = False
        return found if same else ast.unparse(node)

    def _read(self, node: ast.stmt) -> None:
        try:
            statement = read_statement(node)
        except SyntaxError:
            # Such as `await` in a notebook: whoever needs a name of it is told that there is none.
            return
        if _is_program(node):
            self.program_names |= statement.binds
            return
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            self.stars.append(node.lineno)
        number = len(self.statements)
        self.statements.append(statement)
        for name in statement.binds:
            self.binders[name].append(number)
        for name in statement.changes - statement.binds:
            self.changers[name].append(number)


def _end_of(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _paths(node: ast.AST, above: list[ast.AST]) -> Iterator[list[ast.AST]]:
    path = [*above, node]
    yield path
    for child in ast.iter_child_nodes(node):
        yield from _paths(child, path)


def _is_of(node: Function, code: CodeType) -> bool:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    if node.name != code.co_name or first != code.co_firstlineno:
        return False
    arguments = node.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    count = code.co_argcount + code.co_kwonlyargcount
    return list(code.co_varnames[:count]) == names


def _is_program(node: ast.stmt) -> bool:
    """Whether it is ``if __name__ == "__main__"``."""
    return isinstance(node, ast.If) and any(
        isinstance(each, ast.Name) and each.id == "__name__" for each in ast.walk(node.test)
    )
