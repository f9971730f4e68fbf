"""Extracts a function from its module, with everything that it uses there."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from strata.client.errors import SourceProblem, ToolSourceError
from strata.client.source.module import ModuleText
from strata.client.source.statements import (
    Function,
    SourceStatement,
    bound_inside,
    line_of,
    read_statement,
)

_BUILTINS = frozenset(dir(builtins)) - {"_"}
_PLAIN = (type(None), bool, int, str, bytes)


def tool_source(function: Any, *, packages: bool = True, body: bool = True) -> str:
    """Returns the source of a function and of everything it uses in its module, in module order.

    The source includes the imports, constants, functions and classes that it names, and
    transitively the ones that these name. They are read from the text of the file; nothing is run.
    So a name has the meaning in the text, even if it was set to another value later. Statements
    that change a value are included only if they begin with its name: ``TABLE["a"] = 1``,
    ``TABLE.update(...)``.

    A nested function may use variables of the enclosing functions if they are texts, numbers,
    None, or lists, tuples, dicts and sets of these: their present values are written out.

    Args:
        function: A plain or ``async`` function.
        packages: Whether packages besides the standard library are available.
        body: Whether to include the body; otherwise only its signature and docstring, and
            everything that the signature names.

    Raises:
        ToolSourceError: The source is not self-contained; it has all problems by line.
    """
    name = getattr(function, "__name__", None) or repr(function)
    kind = _kind_problem(function)
    if kind:
        raise ToolSourceError(name, [SourceProblem(kind)])
    try:
        module = ModuleText.of(function)
    except OSError:
        problem_text = "has no source to read; define it in a file"
        raise ToolSourceError(name, [SourceProblem(problem_text)]) from None
    except SyntaxError as error:
        problem_text = f"is in a file that is not valid Python: {error.msg}"
        raise ToolSourceError(name, [SourceProblem(problem_text, error.lineno or 0)]) from None
    path = module.path_to(function.__code__)
    if not path:
        problem_text = f"is no longer in {module.file} as it was loaded; load it again"
        problem = SourceProblem(problem_text, function.__code__.co_firstlineno)
        raise ToolSourceError(name, [problem], module.file)
    if not body:
        module = module.without_body(path[-1])  # type: ignore[arg-type]
        path = module.path_to(function.__code__)
    extraction = _Extraction(module, function, path, packages=packages)
    source = extraction.source()
    if extraction.problems:
        raise ToolSourceError(name, extraction.problems, module.file)
    return source


def _kind_problem(function: Any) -> str:
    """Returns why an object cannot be a tool; empty for a plain function."""
    if isinstance(function, MethodType):
        return "is a method; a tool is a plain function"
    if hasattr(function, "__wrapped__"):
        return "is wrapped by a decorator; a tool is a plain function"
    if not isinstance(function, FunctionType):
        return "is not a function written with def"
    if function.__name__ == "<lambda>" or function.__code__.co_name == "<lambda>":
        return "is a lambda; write it with def, annotations and a docstring"
    if function.__name__ != function.__code__.co_name:
        return f"is {function.__code__.co_name} in its source; a tool has one name"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "yields; return a list instead"
    if function.__name__.startswith("_"):
        return "begins with _, which is for helpers of a tool"
    return ""


class _Extraction:
    """The extraction of one function from its module."""

    def __init__(
        self, module: ModuleText, function: FunctionType, path: list[ast.AST], *, packages: bool
    ) -> None:
        self.problems: list[SourceProblem] = []
        self._module = module
        self._function = function
        self._node: Function = path[-1]  # type: ignore[assignment]
        self._above = path[1:-1]
        self._packages = packages
        self._needed: set[str] = set()
        # Numbers of the included statements, with the needed names of an import.
        self._taken_names: dict[int, set[str]] = {}

    def source(self) -> str:
        """Returns the source, which is valid if there are no `problems`."""
        node, module = self._node, self._module
        for decorator in node.decorator_list:
            problem_text = (
                f"has the decorator @{ast.unparse(decorator)}; a tool is a plain function"
            )
            self._problem(problem_text, decorator.lineno)
        scopes = [
            node_above
            for node_above in self._above
            if isinstance(node_above, Function | ast.ClassDef)
        ]
        if scopes and isinstance(scopes[-1], ast.ClassDef):
            self._problem("is a method; a tool is a plain function", node.lineno)
        if self.problems:
            return ""
        for number, statement in enumerate(module.statements):
            if isinstance(statement.node, ast.ImportFrom) and (
                statement.node.module == "__future__"
            ):
                self._taken_names[number] = set(statement.binds)
        pieces: list[str] = []
        if self._above:
            pieces = self._inner()
        else:
            self._need(node.name, node)
            if len(module.binders[node.name]) > 1:
                problem_text = f"the module binds {node.name} again"
                self._problem(problem_text, max(self._lines_that_bind(node.name)))
        return "".join([*self._pieces_of_taken(), *pieces])

    def _inner(self) -> list[str]:
        """Extracts a function that is not at the top level of its module."""
        node = self._node
        outer = [node_above for node_above in self._above if isinstance(node_above, Function)]
        local = {name for function in outer for name in bound_inside(function)}
        try:
            statement = read_statement(node)
        except SyntaxError as error:
            # For example a function that sets a variable of the enclosing function.
            self._problem(f"is not self-contained: {error.msg}", node.lineno)
            return []
        held_names = self._held()
        for name in sorted(statement.uses - held_names.keys() - {node.name}):
            if name in local:
                problem_text = f"uses {name}, which only {outer[-1].name}() defines"
                self._problem(problem_text, line_of(node, name))
            else:
                self._need(name, node)
        self._check_imports(node)
        for name in sorted(statement.may_use - held_names.keys() - local):
            self._need_if_there(name, node)
        own = held_names.keys() | ({node.name} if outer else set())
        for name in sorted(own & self._needed):
            problem_text = f"{name} has one meaning in this function and another one in the module"
            self._problem(problem_text, line_of(node, name))
        constants = [f"{name} = {value!r}\n" for name, value in sorted(held_names.items())]
        return [*constants, "\n\n", self._module.text_of(node), "\n"]

    def _held(self) -> dict[str, Any]:
        """Returns the used variables of the enclosing functions with their values."""
        code = self._function.__code__
        used = {
            name_node.id for name_node in ast.walk(self._node) if isinstance(name_node, ast.Name)
        }
        values: dict[str, Any] = {}
        cells = self._function.__closure__ or ()
        for name, cell in zip(code.co_freevars, cells, strict=True):
            if name == self._node.name or name not in used:
                continue
            line = line_of(self._node, name)
            try:
                value = cell.cell_contents
            except ValueError:
                self._problem(f"uses {name}, which has no value yet", line)
                values[name] = None
                continue
            if not _is_literal(value):
                kind = type(value).__name__
                problem_text = (
                    f"uses {name} of the enclosing function, a {kind}: not a text, number or list"
                )
                self._problem(problem_text, line)
            values[name] = value
        return values

    def _need(self, name: str, user: ast.AST) -> None:
        if name in self._needed:
            return
        self._needed.add(name)
        module = self._module
        binders = module.binders.get(name, [])
        for number in binders:
            self._take(number, name)
        if any(not module.statements[number].is_import for number in binders):
            for number in module.changers.get(name, []):
                self._take(number, name)
        if not binders and name not in _BUILTINS:
            self._problem(self._missing(name), line_of(user, name))

    def _need_if_there(self, name: str, user: ast.AST) -> None:
        if self._module.binders.get(name):
            self._need(name, user)

    def _missing(self, name: str) -> str:
        if name in self._module.program_names:
            return f'uses {name}, which is defined only where __name__ == "__main__"'
        if self._module.stars:
            lines = ", ".join(map(str, self._module.stars))
            return (
                f"uses {name}, which may come from the import * in line {lines}; import it by name"
            )
        return f"uses {name}, which {self._module.file} does not define"

    def _take(self, number: int, name: str) -> None:
        statement = self._module.statements[number]
        is_taken = number in self._taken_names
        self._taken_names.setdefault(number, set()).add(name)
        if is_taken and not statement.is_import:
            return
        self._check_imports(statement.node, name)
        if statement.is_import:
            return
        for use in sorted(statement.uses):
            self._need(use, statement.node)
        for use in sorted(statement.may_use):
            self._need_if_there(use, statement.node)

    def _check_imports(self, node: ast.stmt, name: str = "") -> None:
        for import_ in _imports(node):
            aliases = [alias for alias in import_.names if _is_asked(alias, node, name)]
            if isinstance(import_, ast.ImportFrom) and import_.level:
                problem_text = (
                    f"{ast.unparse(import_)} imports your own package; a tool has to contain its"
                    " whole source"
                )
                self._problem(problem_text, import_.lineno)
                continue
            modules = (
                [import_.module or ""]
                if isinstance(import_, ast.ImportFrom)
                else [alias.name for alias in aliases]
            )
            for module in modules if aliases else ():
                top = module.partition(".")[0]
                if not self._packages and top not in sys.stdlib_module_names:
                    problem_text = (
                        f"imports {top}, which is not in the standard library: name the package "
                        "in pip_requirements (a dry run of source has none)"
                    )
                    self._problem(problem_text, import_.lineno)

    def _pieces_of_taken(self) -> Iterator[str]:
        """Yields the text of the included statements, with blank lines between them."""
        before: SourceStatement | None = None
        for number in sorted(self._taken_names):
            statement = self._module.statements[number]
            wide = _is_wide(statement) or (before is not None and _is_wide(before))
            if before is not None and wide:
                yield "\n\n"
            yield f"{self._text_of(statement, self._taken_names[number])}\n"
            before = statement

    def _text_of(self, statement: SourceStatement, names: set[str]) -> str:
        node = statement.node
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported_names = [name for name in node.names if _bound_by(name) in names]
            if len(imported_names) < len(node.names):
                return ast.unparse(
                    ast.Import(imported_names)
                    if isinstance(node, ast.Import)
                    else ast.ImportFrom(node.module, imported_names, node.level)
                )
        return self._module.text_of(node)

    def _lines_that_bind(self, name: str) -> Iterator[int]:
        for number in self._module.binders[name]:
            yield self._module.statements[number].node.lineno

    def _problem(self, text: str, line: int) -> None:
        self.problems.append(SourceProblem(text, line))


def _is_wide(statement: SourceStatement) -> bool:
    return isinstance(statement.node, Function | ast.ClassDef)


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _is_asked(alias: ast.alias, statement: ast.stmt, name: str) -> bool:
    """Whether an import is needed; at the top level, only if it binds the name."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return _bound_by(alias) == name
    return True


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yields the imports in a statement that must succeed: not those in ``try`` or for types."""
    match node:
        case ast.Import() | ast.ImportFrom():
            yield node
        case ast.Try(handlers=[_, *_], orelse=other, finalbody=last):
            for statement in (*other, *last):
                yield from _imports(statement)
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            for statement in node.orelse:
                yield from _imports(statement)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _imports(child)


def _is_literal(value: Any, depth: int = 20) -> bool:
    """Whether the ``repr`` of a value is source code for an equal value."""
    if depth == 0:
        return False
    if type(value) in _PLAIN:
        return True
    if type(value) is float:
        return math.isfinite(value)
    if type(value) in {list, tuple}:
        return all(_is_literal(element, depth - 1) for element in value)
    if type(value) is set:
        return bool(value) and all(_is_literal(element, depth - 1) for element in value)
    if type(value) is dict:
        return all(
            _is_literal(key, depth - 1) and _is_literal(item_value, depth - 1)
            for key, item_value in value.items()
        )
    return False
