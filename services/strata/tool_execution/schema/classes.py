"""What classes of a module hold: dataclasses, TypedDicts, pydantic models and Enums."""

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
        required: It has no default.
        bounds: What pydantic's ``Field`` says of a number, as JSON schema.
    """

    name: str
    annotation: ast.expr
    required: bool = True
    description: str = ""
    bounds: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_field(cls, name: str, annotation: ast.expr, call: ast.Call) -> Member:
        """Reads ``Field(...)`` of pydantic or ``field(...)`` of dataclasses."""
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        if {"alias", "validation_alias"} & set(given):
            raise AnnotationError(f"{name or 'a field'} has an alias; name it as it is called")
        # `Field(...)`: three dots say that there is no default.
        positional = bool(call.args) and not _is_dots(call.args[0])
        default = positional or (
            ("default" in given and not _is_dots(given["default"])) or "default_factory" in given
        )
        description = given.get("description")
        bounds = {_BOUNDS[key]: _number(value) for key, value in given.items() if key in _BOUNDS}
        return cls(
            name,
            annotation,
            required=not default,
            description=str(description.value) if isinstance(description, ast.Constant) else "",
            bounds={key: value for key, value in bounds.items() if value is not None},
        )


def class_kind(definition: ast.ClassDef, names: ModuleNames) -> Kind:
    """Returns what kind of class it is; empty if nothing says what it holds."""
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
            # A plain class under a dataclass has the members of that dataclass alone.
            if kind:
                return kind
    return ""


def members(definition: ast.ClassDef, names: ModuleNames) -> list[Member]:
    """Returns the members of a class, those that it inherits first.

    Raises:
        AnnotationError: What a member is cannot be told from the source.
    """
    kind = class_kind(definition, names)
    found: dict[str, Member] = {}
    for base in reversed(definition.bases):
        if isinstance(base, ast.Name) and base.id in names.classes:
            inherited = members(names.classes[base.id], names)
            found.update((each.name, each) for each in inherited)
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
                    found[name] = member
            case _:
                pass
    return list(found.values())


def _is_decorated(definition: ast.ClassDef, names: ModuleNames) -> bool:
    called = [
        each.func if isinstance(each, ast.Call) else each for each in definition.decorator_list
    ]
    return any(names.qualified(each) == "dataclasses.dataclass" for each in called)


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
    if wrapper == "typing.ClassVar":
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
        AnnotationError: One is no plain text or number, or there is none.
    """
    values = []
    for statement in definition.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not name.startswith("_"):
                try:
                    found = ast.literal_eval(value)
                except ValueError:
                    found = ...
                if not isinstance(found, str | int | float):
                    raise AnnotationError(
                        f"{definition.name}.{name} is no plain text or number; write its value out"
                    )
                if found not in values:
                    values.append(found)
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
