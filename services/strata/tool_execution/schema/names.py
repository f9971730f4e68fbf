"""Resolves names in the source of a module: classes, imports and aliases."""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator
from typing import Any

# Builtin names, unless the module redefines them.
_BUILTINS = frozenset(
    {
        *("str", "int", "float", "bool", "list", "dict", "tuple", "set", "frozenset"),
        *("object", "bytes", "complex", "type"),
    }
)
# Other names of the builtin types.
_SAME = {
    "typing.List": "list",
    "typing.Dict": "dict",
    "typing.Tuple": "tuple",
    "typing.Set": "set",
    "typing.FrozenSet": "frozenset",
    "typing.Text": "str",
    **{
        f"{module}.{name}": "list"
        for module in ("typing", "collections.abc")
        for name in ("Sequence", "Iterable", "Collection", "MutableSequence")
    },
    **{
        f"{module}.{name}": "dict"
        for module in ("typing", "collections.abc")
        for name in ("Mapping", "MutableMapping")
    },
}
# `type X = ...`, which Python has since 3.12.
_TYPE_STATEMENT: Any = getattr(ast, "TypeAlias", None)


class ModuleNames:
    """The classes, imports and aliases of a module.

    Attributes:
        classes: Its classes by name; if two have the same name, the later one counts.
    """

    def __init__(self, module: ast.Module) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self._imports: dict[str, str] = {}
        self._aliases: dict[str, ast.expr] = {}
        for statement in _statements(module):
            self._read(statement)

    def alias(self, name: str) -> ast.expr | None:
        """Returns the expression that is assigned to a name; None for classes and imports."""
        return self._aliases.get(name)

    def qualified(self, node: ast.expr) -> str | None:
        """Returns the qualified name of an expression: ``typing.Optional``, ``str``.

        None for classes and aliases of the module, and for expressions that are not names.
        """
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        if node.id in self.classes or (node.id in self._aliases and not parts):
            return None
        root = self._imports.get(node.id)
        if root is None and not parts and node.id in _BUILTINS:
            root = node.id
        if root is None:
            return None
        full_name = ".".join([root, *reversed(parts)])
        full_name = full_name.replace("typing_extensions.", "typing.", 1)
        return _SAME.get(full_name, full_name)

    def _read(self, statement: ast.stmt) -> None:
        if _TYPE_STATEMENT is not None and isinstance(statement, _TYPE_STATEMENT):
            if not statement.type_params:
                self._aliases[statement.name.id] = statement.value
            return
        match statement:
            case ast.ClassDef(name=name):
                self.classes[name] = statement
            case ast.Import(names=names):
                for alias in names:
                    self._imports[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            case ast.ImportFrom(module="typing", names=[ast.alias(name="*")], level=0):
                self._imports.update({name: f"typing.{name}" for name in typing.__all__})
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    self._imports[alias.asname or alias.name] = f"{module}.{alias.name}"
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._aliases[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._aliases[name] = value
            case _:
                pass


def _statements(module: ast.Module) -> Iterator[ast.stmt]:
    """Yields the statements of a module, including imports under ``if`` and ``try``."""
    waiting = list(reversed(module.body))
    while waiting:
        statement = waiting.pop()
        yield statement
        match statement:
            case ast.If(body=body, orelse=other):
                waiting.extend(reversed([*body, *other]))
            case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=last):
                caught = [inner for handler in handlers for inner in handler.body]
                waiting.extend(reversed([*body, *caught, *other, *last]))
            case _:
                pass
