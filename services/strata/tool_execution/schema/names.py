"""What names in a module stand for, as far as its text says."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# What a bare name means where the module gives it no other meaning.
_BUILTINS = frozenset(
    {
        *("str", "int", "float", "bool", "list", "dict", "tuple", "set", "frozenset"),
        *("object", "bytes", "complex", "type"),
    }
)
# The same thing under its older or other names.
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


class ModuleNames:
    """The classes, imports and aliases of a module.

    Attributes:
        classes: Its classes by name; of two with one name the later one, as when it is run.
    """

    def __init__(self, module: ast.Module) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self._imports: dict[str, str] = {}
        self._aliases: dict[str, ast.expr] = {}
        for statement in _statements(module):
            self._read(statement)

    def alias(self, name: str) -> ast.expr | None:
        """What a name of the module is assigned, if it is neither a class nor imported."""
        return self._aliases.get(name)

    def qualified(self, node: ast.expr) -> str | None:
        """What a name or a dotted name stands for: ``typing.Optional``, ``str``.

        None for a class or an alias of the module, and for what is no name.
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
        whole = ".".join([root, *reversed(parts)])
        whole = whole.replace("typing_extensions.", "typing.", 1)
        return _SAME.get(whole, whole)

    def _read(self, statement: ast.stmt) -> None:
        match statement:
            case ast.ClassDef(name=name):
                self.classes[name] = statement
            case ast.Import(names=names):
                for each in names:
                    self._imports[each.asname or each.name.partition(".")[0]] = (
                        each.name if each.asname else each.name.partition(".")[0]
                    )
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for each in names:
                    self._imports[each.asname or each.name] = f"{module}.{each.name}"
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._aliases[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._aliases[name] = value
            case _:
                pass


def _statements(module: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, those under ``if`` and ``try`` too: imports stand there."""
    waiting = list(reversed(module.body))
    while waiting:
        statement = waiting.pop()
        yield statement
        match statement:
            case ast.If(body=body, orelse=other):
                waiting.extend(reversed([*body, *other]))
            case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=last):
                caught = [each for handler in handlers for each in handler.body]
                waiting.extend(reversed([*body, *caught, *other, *last]))
            case _:
                pass
