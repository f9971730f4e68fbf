"""Finds the names that a statement of a module binds, uses and changes, from its text."""

from __future__ import annotations

import ast
import copy
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class SourceStatement:
    """One statement at the top level of a module.

    Attributes:
        node: Its syntax tree.
        binds: Names that it binds or deletes.
        uses: Names that must be defined, at once or when a function in it is called.
        may_use: Names that may refer to the module, such as those in quoted annotations.
        changes: Names whose values it changes without binding the name.
    """

    node: ast.stmt
    binds: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    may_use: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()

    @property
    def is_import(self) -> bool:
        """Whether it is an import."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)


# Python 3.14 adds it to a scope that has annotations within `if`, `for`, `with` or `try`.
_COMPILER_NAMES = frozenset({"__conditional_annotations__"})


@dataclass(slots=True)
class _Names:
    binds: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)
    may_use: set[str] = field(default_factory=set)


def read_statement(node: ast.stmt) -> SourceStatement:
    """Analyses the names in a statement.

    Raises:
        SyntaxError: It is not valid at the top level of a module.
    """
    # Without the module's __future__ imports, so that the names of annotations count as used.
    text = ast.unparse(_WithoutInlining().visit(copy.deepcopy(node)))
    table = symtable.symtable(text, "<statement>", "exec")
    names = _Names()
    for symbol in _written_symbols(table):
        if symbol.is_assigned() or symbol.is_imported():
            names.binds.add(symbol.get_name())
        if symbol.is_referenced():
            names.uses.add(symbol.get_name())
    for child in table.get_children():
        _read_scope(child, names)
    if isinstance(node, ast.AnnAssign) and node.value is None:
        names.binds.clear()
    return SourceStatement(
        node,
        frozenset(names.binds),
        frozenset(names.uses - _own_targets(node)),
        frozenset(names.may_use | set(_quoted(node))),
        frozenset(_changed(node)),
    )


def _read_scope(table: symtable.SymbolTable, names: _Names) -> None:
    for symbol in _written_symbols(table):
        if symbol.is_global():
            names.uses.add(symbol.get_name())
        elif table.get_type() == "class" and symbol.is_referenced():
            # In `x = x` of a class body, the right-hand name is the module's.
            names.may_use.add(symbol.get_name())
    for child in table.get_children():
        _read_scope(child, names)


class _WithoutInlining(ast.NodeTransformer):
    """Turns comprehensions into generators, which use the same names.

    Since Python 3.12 the variables of a comprehension count as those of the scope around it.
    """

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Turns a node into its replacement after its children."""
        super().generic_visit(node)
        match node:
            case ast.ListComp(elt=element) | ast.SetComp(elt=element):
                return ast.GeneratorExp(element, node.generators)
            case ast.DictComp(key=key, value=value):
                return ast.GeneratorExp(ast.Tuple([key, value], ast.Load()), node.generators)
            case _:
                return node


def _written_symbols(table: symtable.SymbolTable) -> list[symtable.Symbol]:
    """Returns the symbols of a scope without those that the compiler creates."""
    return [
        symbol
        for symbol in table.get_symbols()
        if symbol.get_name().isidentifier() and symbol.get_name() not in _COMPILER_NAMES
    ]


def _own_targets(node: ast.stmt) -> set[str]:
    """Returns names that a statement binds before using them, in loops, ``with`` and ``except``."""
    names: set[str] = set()
    for child in _unscoped(node):
        match child:
            case ast.For(target=target) | ast.AsyncFor(target=target):
                names |= _stored(target)
            case ast.withitem(optional_vars=ast.expr() as target):
                names |= _stored(target)
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
            case _:
                pass
    return names


def _stored(target: ast.expr) -> set[str]:
    return {
        name_node.id
        for name_node in ast.walk(target)
        if isinstance(name_node, ast.Name) and isinstance(name_node.ctx, ast.Store)
    }


def _changed(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, _SCOPES):
        return
    for child in _unscoped(node):
        match child:
            case (
                ast.Attribute(ctx=ast.Store() | ast.Del())
                | ast.Subscript(ctx=ast.Store() | ast.Del())
            ):
                yield from _root(child)
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
                yield from _root(method)
            case _:
                pass


def _root(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _unscoped(node: ast.AST) -> Iterator[ast.AST]:
    """Yields a node and its descendants, except those in nested functions and classes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SCOPES):
            yield from _unscoped(child)


def _quoted(node: ast.stmt) -> Iterator[str]:
    for child in ast.walk(node):
        match child:
            case ast.arg(annotation=ast.expr() as annotation):
                yield from _in_quotes(annotation)
            case ast.FunctionDef(returns=ast.expr() as annotation):
                yield from _in_quotes(annotation)
            case ast.AsyncFunctionDef(returns=ast.expr() as annotation):
                yield from _in_quotes(annotation)
            case ast.AnnAssign(annotation=annotation):
                yield from _in_quotes(annotation)
            case _:
                pass


def _in_quotes(annotation: ast.expr) -> Iterator[str]:
    for child in ast.walk(annotation):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            try:
                inside = ast.parse(child.value.strip(), mode="eval")
            except (SyntaxError, ValueError):
                continue
            yield from (name.id for name in ast.walk(inside) if isinstance(name, ast.Name))


def bound_inside(function: Function) -> set[str]:
    """Returns the names that a function binds in its own scope."""
    arguments = function.args
    names = {
        argument.arg
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    }
    names.update(
        argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument is not None
    )
    for statement in function.body:
        for child in (statement, *_below(statement)):
            match child:
                case ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
                case (
                    ast.FunctionDef(name=name)
                    | ast.AsyncFunctionDef(name=name)
                    | ast.ClassDef(name=name)
                ):
                    names.add(name)
                case ast.alias(name=name, asname=asname):
                    names.add(asname or name.partition(".")[0])
                case _:
                    pass
    return names


def _below(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, _SCOPES):
        return
    for child in ast.iter_child_nodes(node):
        yield child
        yield from _below(child)


def line_of(node: ast.AST, name: str) -> int:
    """Returns the first line in which a statement uses a name; else its own first line."""
    lines = [
        child.lineno
        for child in ast.walk(node)
        if (isinstance(child, ast.Name) and child.id == name)
        or (isinstance(child, ast.Global) and name in child.names)
    ]
    return min(lines, default=getattr(node, "lineno", 0))
