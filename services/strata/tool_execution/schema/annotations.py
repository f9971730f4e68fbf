"""Converts Python annotations to JSON schemas."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from strata.tool_execution.schema.classes import Member, class_kind, enum_values, members
from strata.tool_execution.schema.names import ModuleNames
from strata.tool_execution.schema.problems import AnnotationError

Schema = dict[str, Any]

_PLAIN: dict[str, Schema] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "typing.Any": {},
    "object": {},
    "datetime.datetime": {"type": "string", "format": "date-time"},
    "datetime.date": {"type": "string", "format": "date"},
}
_LISTS = frozenset({"list", "set", "frozenset"})
# Nested classes can multiply; larger schemas are of no use to a model.
_MOST_NODES = 2_000
_DEEPEST = 24


class Annotations:
    """Converts the annotations of one module to schemas.

    Args:
        names: The names of the module.
    """

    def __init__(self, names: ModuleNames) -> None:
        self._names = names
        self._open: list[str] = []
        self._nodes = 0
        self._depth = 0
        self._generic: dict[str, Callable[[list[ast.expr]], Schema]] = {
            "typing.Optional": self._optional,
            "typing.Union": self._union,
            "typing.Literal": self._literal,
            "typing.Annotated": self._annotated,
            "dict": self._dict,
            "tuple": self._tuple,
            **dict.fromkeys(_LISTS, self._list),
            **{f"typing.{name}": self._wrapped for name in ("Required", "NotRequired", "Final")},
        }

    def schema(self, node: ast.expr) -> Schema:
        """Returns the schema of an annotation.

        Raises:
            AnnotationError: JSON has no such type, or the module does not define it.
        """
        self._nodes += 1
        if self._nodes > _MOST_NODES or self._depth > _DEEPEST:
            raise AnnotationError("the annotations are too large together for a model to read")
        self._depth += 1
        try:
            return self._schema(node)
        finally:
            self._depth -= 1

    def is_field(self, node: ast.expr | None) -> bool:
        """Returns whether an expression calls pydantic's ``Field``."""
        return isinstance(node, ast.Call) and self._names.qualified(node.func) == "pydantic.Field"

    def _schema(self, node: ast.expr) -> Schema:
        match node:
            case ast.Constant(value=None):
                return {"type": "null"}
            case ast.Constant(value=str(text)):
                return self.schema(_parsed(text))
            case ast.BinOp(op=ast.BitOr()):
                return self._union(_options(node))
            case ast.Subscript(value=base, slice=inside):
                arguments = inside.elts if isinstance(inside, ast.Tuple) else [inside]
                generic = self._generic.get(self._names.qualified(base) or "")
                if generic is not None:
                    return generic(list(arguments))
                raise AnnotationError(f"{ast.unparse(node)} is not a type that JSON can hold")
            case _:
                return self._named(node)

    def _named(self, node: ast.expr) -> Schema:
        if isinstance(node, ast.Name):
            if node.id in self._names.classes:
                return self._class(node.id)
            meant = self._names.alias(node.id)
            if meant is not None:
                return self._once(node.id, lambda: self.schema(meant))
        name = self._names.qualified(node)
        if name in _PLAIN:
            return dict(_PLAIN[name])
        if name in _LISTS or name == "tuple":
            return {"type": "array", "items": {}}
        if name == "dict":
            return {"type": "object", "additionalProperties": True}
        raise AnnotationError(
            f"{ast.unparse(node)} is not a type that JSON can hold; use str, int, float, bool,"
            " list, dict, tuple, Literal, Optional, Any, or an Enum, dataclass, TypedDict or"
            " pydantic model that the source itself defines"
        )

    def _class(self, name: str) -> Schema:
        definition = self._names.classes[name]
        kind = class_kind(definition, self._names)
        if kind == "enum":
            return _choice(enum_values(definition))
        if not kind:
            raise AnnotationError(
                f"{name} is not an Enum, dataclass, TypedDict or pydantic model, so it is unknown"
                " what it holds"
            )
        return self._once(name, lambda: self._object(definition))

    def _object(self, definition: ast.ClassDef) -> Schema:
        fields = members(definition, self._names)
        return {
            "type": "object",
            "properties": {member.name: self._member(member) for member in fields},
            "required": [member.name for member in fields if member.required],
            "additionalProperties": False,
        }

    def _member(self, member: Member) -> Schema:
        schema = self.schema(member.annotation)
        schema.update(member.bounds)
        if member.description:
            schema["description"] = member.description
        return schema

    def _once(self, name: str, make: Callable[[], Schema]) -> Schema:
        if name in self._open:
            raise AnnotationError(f"{name} contains itself, which a schema cannot express")
        self._open.append(name)
        try:
            return make()
        finally:
            self._open.pop()

    def _optional(self, arguments: list[ast.expr]) -> Schema:
        return self._union([*arguments, ast.Constant(value=None)])

    def _union(self, arguments: list[ast.expr]) -> Schema:
        options: list[Schema] = []
        for argument in arguments:
            option = self.schema(argument)
            alternatives = option["anyOf"] if set(option) == {"anyOf"} else [option]
            options.extend(
                alternative for alternative in alternatives if alternative not in options
            )
        if {} in options:
            return {}
        if len(options) == 1:
            return options[0]
        plain = [option["type"] for option in options if set(option) == {"type"}]
        if len(plain) == len(options) and all(isinstance(kind, str) for kind in plain):
            return {"type": plain}
        return {"anyOf": options}

    def _literal(self, arguments: list[ast.expr]) -> Schema:
        values = []
        for argument in arguments:
            try:
                value = ast.literal_eval(argument)
            except ValueError:
                value = ...
            if not isinstance(value, str | int | bool | None):
                raise AnnotationError(f"Literal[{ast.unparse(argument)}] is not a text or a number")
            values.append(value)
        return _choice(values)

    def _annotated(self, arguments: list[ast.expr]) -> Schema:
        schema = self.schema(arguments[0])
        for extra in arguments[1:]:
            match extra:
                case ast.Constant(value=str(text)):
                    schema["description"] = text
                case ast.Call():
                    member = Member.of_field("", arguments[0], extra)
                    schema.update(member.bounds)
                    if member.description:
                        schema["description"] = member.description
                case _:
                    pass
        return schema

    def _list(self, arguments: list[ast.expr]) -> Schema:
        return {"type": "array", "items": self.schema(_only(arguments, "list"))}

    def _wrapped(self, arguments: list[ast.expr]) -> Schema:
        return self.schema(_only(arguments, "Required"))

    def _dict(self, arguments: list[ast.expr]) -> Schema:
        if len(arguments) != 2:
            raise AnnotationError("dict takes the types of its keys and of its values")
        if self.schema(arguments[0]) not in ({"type": "string"}, {}):
            raise AnnotationError("the keys of a dict must be str: JSON has no others")
        return {"type": "object", "additionalProperties": self.schema(arguments[1])}

    def _tuple(self, arguments: list[ast.expr]) -> Schema:
        match arguments:
            case [every, ast.Constant(value=value)] if value is ...:
                return {"type": "array", "items": self.schema(every)}
            case [ast.Tuple(elts=[])]:
                arguments = []
        kinds = [self.schema(argument) for argument in arguments]
        size = {"minItems": len(kinds), "maxItems": len(kinds)}
        if not kinds:
            return {"type": "array", "items": {}, **size}
        if all(kind == kinds[0] for kind in kinds):
            return {"type": "array", "items": kinds[0], **size}
        return {"type": "array", "prefixItems": kinds, **size}


def _choice(values: list[Any]) -> Schema:
    kinds = {_KINDS[type(value)] for value in values}
    if len(kinds) == 1:
        return {"type": kinds.pop(), "enum": values}
    return {"enum": values}


_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _only(arguments: list[ast.expr], name: str) -> ast.expr:
    if len(arguments) != 1:
        raise AnnotationError(f"{name} takes one type")
    return arguments[0]


def _options(node: ast.expr) -> list[ast.expr]:
    """Returns the options of ``a | b | c``, without recursion."""
    options: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        options.append(node.right)
        node = node.left
    return [node, *reversed(options)]


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise AnnotationError(f"{text!r} is not an annotation") from None
