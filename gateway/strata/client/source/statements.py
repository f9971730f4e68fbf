"""The statements of a module: what each binds, uses and changes, as far as its text says."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement at the top level of a module.

    Attributes:
        node: It.
        binds: Names that it gives a meaning or takes it from.
        uses: Names that must mean something, at once or when a function of it is called.
        may_use: Names that may stand for something of the module: in quoted annotations.
        changes: Names of things that it changes without binding the name.
    """

    node: ast.stmt
    binds: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    may_use: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()

    @property
    def is_import(self) -> bool:
        """Whether it imports and does nothing else."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)


@dataclass(slots=True)
class _Names:
    binds: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)
    may_use: set[str] = field(default_factory=set)


def read_statement(node: ast.stmt) -> Statement:
    """Returns what a statement does to names.

    Raises:
        SyntaxError: It cannot stand at the top level of a module.
    """
    # Without the module's __future__ imports, so that the names of annotations count as used.
    table = symtable.symtable(ast.unparse(node), "<statement>", "exec")
    names = _Names()
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            names.binds.add(symbol.get_name())
        if symbol.is_referenced():
            names.uses.add(symbol.get_name())
    for child in table.get_children():
        _read_scope(child, names)
    if isinstance(node, ast.AnnAssign) and node.value is None:
        names.binds.clear()
    return Statement(
        node,
        frozenset(names.binds),
        frozenset(names.uses - _own_targets(node)),
        frozenset(names.may_use | set(_quoted(node))),
        frozenset(_changed(node)),
    )


def _read_scope(table: symtable.SymbolTable, names: _Names) -> None:
    for symbol in table.get_symbols():
        if not symbol.get_name().isidentifier():
            # The compiler's own.
            continue
        if symbol.is_global():
            names.uses.add(symbol.get_name())
        elif table.get_type() == "class" and symbol.is_referenced():
            # In `x = x` of a class the second one is the module's.
            names.may_use.add(symbol.get_name())
    for child in table.get_children():
        _read_scope(child, names)


def _own_targets(node: ast.stmt) -> set[str]:
    """Names that a statement binds before it uses them: of loops, ``with`` and ``except``."""
    found: set[str] = set()
    for each in _unscoped(node):
        match each:
            case ast.For(target=target) | ast.AsyncFor(target=target):
                found |= _stored(target)
            case ast.withitem(optional_vars=ast.expr() as target):
                found |= _stored(target)
            case ast.ExceptHandler(name=str(name)):
                found.add(name)
            case _:
                pass
    return found


def _stored(target: ast.expr) -> set[str]:
    return {
        each.id
        for each in ast.walk(target)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


def _changed(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, _SCOPES):
        return
    for each in _unscoped(node):
        match each:
            case (
                ast.Attribute(ctx=ast.Store() | ast.Del())
                | ast.Subscript(ctx=ast.Store() | ast.Del())
            ):
                yield from _root(each)
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
    """The node and what is in it, but not in functions and classes inside of it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SCOPES):
            yield from _unscoped(child)


def _quoted(node: ast.stmt) -> Iterator[str]:
    for each in ast.walk(node):
        match each:
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
    for each in ast.walk(annotation):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            try:
                inside = ast.parse(each.value.strip(), mode="eval")
            except (SyntaxError, ValueError):
                continue
            yield from (name.id for name in ast.walk(inside) if isinstance(name, ast.Name))


def bound_inside(function: Function) -> set[str]:
    """Returns the names that a function gives a meaning in its own scope."""
    arguments = function.args
    found = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    found.update(each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None)
    for statement in function.body:
        for each in (statement, *_below(statement)):
            match each:
                case ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
                case (
                    ast.FunctionDef(name=name)
                    | ast.AsyncFunctionDef(name=name)
                    | ast.ClassDef(name=name)
                ):
                    found.add(name)
                case ast.alias(name=name, asname=asname):
                    found.add(asname or name.partition(".")[0])
                case _:
                    pass
    return found


def _below(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, _SCOPES):
        return
    for child in ast.iter_child_nodes(node):
        yield child
        yield from _below(child)


def line_of(node: ast.AST, name: str) -> int:
    """Returns the first line in which a statement names something; else its own line."""
    lines = [
        each.lineno
        for each in ast.walk(node)
        if (isinstance(each, ast.Name) and each.id == name)
        or (isinstance(each, ast.Global) and name in each.names)
    ]
    return min(lines, default=getattr(node, "lineno", 0))
