"""Reads the members of dataclasses, TypedDicts, pydantic models and Enums from their source."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, Literal

from strata.tool_execution.schema.names import ModuleNames
from strata.tool_execution.schema.problems import AnnotationError

Kind = Literal["enum", "dataclass", "typed_dict", "model", ""]

_ENUMS = frozenset(f"enum.{name}" for name in ("Enum", "StrEnum", "IntEnum"))
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a class.

    Attributes:
        required: Whether it has no default.
        bounds: Bounds of a number from pydantic's ``Field``, as JSON schema.
    """

    name: str
    annotation: ast.expr
    required: bool = True
    description: str = ""
    bounds: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_field(cls, name: str, annotation: ast.expr, call: ast.Call) -> Member:
        """Reads ``Field(...)`` of pydantic or ``field(...)`` of dataclasses."""
        arguments = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        if {"alias", "validation_alias"} & set(arguments):
            raise AnnotationError(f"{name or 'a field'} has an alias; use the alias as its name")
        # `Field(...)` with an ellipsis means that there is no default.
        positional = bool(call.args) and not _is_dots(call.args[0])
        default = positional or (
            ("default" in arguments and not _is_dots(arguments["default"]))
            or "default_factory" in arguments
        )
        description = arguments.get("description")
        bounds = {
            _BOUNDS[key]: _number(value) for key, value in arguments.items() if key in _BOUNDS
        }
        return cls(
            name,
            annotation,
            required=not default,
            description=str(description.value) if isinstance(description, ast.Constant) else "",
            bounds={key: value for key, value in bounds.items() if value is not None},
        )


def class_kind(definition: ast.ClassDef, names: ModuleNames) -> Kind:
    """Returns the kind of a class; empty if its members are unknown."""
    return _kind(definition, names, ())


def _kind(definition: ast.ClassDef, names: ModuleNames, seen: tuple[str, ...]) -> Kind:
    if definition.name in seen:
        return ""
    for decorator in definition.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if names.qualified(called) == "dataclasses.dataclass":
            return "dataclass"
    for base in definition.bases:
        name = names.qualified(base)
        if name in _ENUMS:
            return "enum"
        if name == "typing.TypedDict":
            return "typed_dict"
        if name == "pydantic.BaseModel":
            return "model"
        if isinstance(base, ast.Name) and base.id in names.classes:
            kind = _kind(names.classes[base.id], names, (*seen, definition.name))
            # A plain subclass of a dataclass has only the members of the dataclass.
            if kind:
                return kind
    return ""


def members(definition: ast.ClassDef, names: ModuleNames) -> list[Member]:
    """Returns the members of a class, inherited ones first.

    Raises:
        AnnotationError: The type of a member cannot be read from the source.
    """
    kind = class_kind(definition, names)
    by_name: dict[str, Member] = {}
    for base in reversed(definition.bases):
        if isinstance(base, ast.Name) and base.id in names.classes:
            inherited = members(names.classes[base.id], names)
            by_name.update((member.name, member) for member in inherited)
    own = kind != "dataclass" or _is_decorated(definition, names)
    total = not any(
        keyword.arg == "total"
        and isinstance(keyword.value, ast.Constant)
        and not keyword.value.value
        for keyword in definition.keywords
    )
    for statement in definition.body if own else ():
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                member = _member(name, annotation, value, kind, names, total=total)
                if member is not None:
                    by_name[name] = member
            case _:
                pass
    return list(by_name.values())


def _is_decorated(definition: ast.ClassDef, names: ModuleNames) -> bool:
    called = [
        decorator.func if isinstance(decorator, ast.Call) else decorator
        for decorator in definition.decorator_list
    ]
    return any(names.qualified(decorator) == "dataclasses.dataclass" for decorator in called)


def _member(
    name: str,
    annotation: ast.expr,
    value: ast.expr | None,
    kind: Kind,
    names: ModuleNames,
    *,
    total: bool,
) -> Member | None:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    wrapper = names.qualified(outer)
    # `_: KW_ONLY` is a mark among the fields, not a field.
    if wrapper in {"typing.ClassVar", "dataclasses.KW_ONLY"}:
        return None
    if wrapper == "dataclasses.InitVar":
        raise AnnotationError(f"{name} is an InitVar; make it a field")
    if kind == "typed_dict":
        required = wrapper == "typing.Required" or (total and wrapper != "typing.NotRequired")
        return Member(name, annotation, required)
    if kind == "model" and name.startswith("_"):
        return None
    if isinstance(value, ast.Call) and names.qualified(value.func) in {
        "pydantic.Field",
        "dataclasses.field",
    }:
        is_no_argument = any(
            keyword.arg == "init"
            and isinstance(keyword.value, ast.Constant)
            and not keyword.value.value
            for keyword in value.keywords
        )
        return None if is_no_argument else Member.of_field(name, annotation, value)
    return Member(name, annotation, required=value is None)


def enum_values(definition: ast.ClassDef) -> list[Any]:
    """Returns the values of an Enum.

    Raises:
        AnnotationError: A value is not a plain text or number, or there are no values.
    """
    values = []
    for statement in definition.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not name.startswith("_"):
                try:
                    literal = ast.literal_eval(value)
                except ValueError:
                    literal = ...
                if not isinstance(literal, str | int | float):
                    raise AnnotationError(
                        f"{definition.name}.{name} is not a plain text or number; write its value"
                        " as a literal"
                    )
                if literal not in values:
                    values.append(literal)
            case _:
                pass
    if not values:
        raise AnnotationError(f"{definition.name} has no values")
    return values


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _number(node: ast.expr) -> int | float | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int | float) else None
