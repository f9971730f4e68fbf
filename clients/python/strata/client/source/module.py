"""The source text of a function's module."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from strata.client.source.statements import Function, SourceStatement, read_statement


class ModuleText:
    """The statements of a module, and which of them bind or change a name.

    Args:
        text: Source text of the module.
        file: Name of its file, for messages.

    Attributes:
        statements: Its statements in order, without those that run only as a program.
        binders: Numbers of the statements that bind a name, by name.
        changers: Numbers of the statements that change the value of a name, by name.
        program_names: Names that only ``if __name__ == "__main__"`` binds.
        stars: Lines of ``import *``.

    Raises:
        SyntaxError: The text is not valid Python.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.tree = ast.parse(text)
        self._text = text
        self._lines = [f"{line}\n" for line in text.split("\n")]
        self.statements: list[SourceStatement] = []
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
            OSError: Its source text is not available.
            SyntaxError: The text is not valid Python.
        """
        lines, _ = inspect.findsource(function.__code__)
        return cls("".join(lines), Path(function.__code__.co_filename).name)

    def path_to(self, code: CodeType) -> list[ast.AST]:
        """Returns the nodes from the module down to the definition of a function.

        Empty if it is missing or has other parameters, because the file was changed.
        """
        for path in _paths(self.tree, []):
            node = path[-1]
            if isinstance(node, Function) and _is_of(node, code):
                return path
        return []

    def without_body(self, node: Function) -> ModuleText:
        """Returns the module without the body of a function, with unchanged line numbers."""
        first, last = node.body[0], node.body[-1]
        line, column, mark = first.lineno, first.col_offset, "..."
        if ast.get_docstring(node, clean=False) is not None:
            line, column, mark = _end_of(first), first.end_col_offset or 0, "; ..."
        # Columns are counted in bytes.
        line_start = self._lines[line - 1].encode()[:column].decode()
        rest = self._lines[_end_of(last) - 1].encode()[last.end_col_offset :].decode()
        blank = "\n" * (_end_of(last) - line)
        text = [
            *self._lines[: line - 1],
            line_start,
            mark,
            blank,
            rest,
            *self._lines[_end_of(last) :],
        ]
        return ModuleText("".join(text), self.file)

    def text_of(self, node: ast.stmt) -> str:
        """Returns the source text of a statement, unindented and with its decorators."""
        segment = ast.get_source_segment(self._text, node, padded=True) or ""
        decorators = getattr(node, "decorator_list", [])
        if decorators:
            first = min(decorator.lineno for decorator in decorators)
            segment = "".join(self._lines[first - 1 : node.lineno - 1]) + segment
        if node.col_offset == 0:
            return segment
        segment = textwrap.dedent(segment)
        # Multi-line strings in the statement may not be indented like it.
        try:
            same = ast.dump(ast.parse(segment)) == ast.dump(ast.Module([node], []))
        except SyntaxError:
            same = False
        return segment if same else ast.unparse(node)

    def _read(self, node: ast.stmt) -> None:
        try:
            statement = read_statement(node)
        except SyntaxError:
            # For example `await` in a notebook; names that it binds count as undefined.
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
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    if node.name != code.co_name or first != code.co_firstlineno:
        return False
    arguments = node.args
    names = [
        argument.arg
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    ]
    count = code.co_argcount + code.co_kwonlyargcount
    return list(code.co_varnames[:count]) == names


def _is_program(node: ast.stmt) -> bool:
    """Whether a statement is ``if __name__ == "__main__"``."""
    return isinstance(node, ast.If) and any(
        isinstance(name_node, ast.Name) and name_node.id == "__name__"
        for name_node in ast.walk(node.test)
    )
