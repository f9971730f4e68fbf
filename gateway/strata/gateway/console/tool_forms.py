"""A form for the arguments of a tool, made from its JSON schema, and the arguments in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata.gateway.console.forms import FormFields
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.number_text import finite_number, whole_number

JSON_FIELD = "arguments_json"
"""The field with all arguments as JSON, which the person may fill in instead of the others."""

_PREFIX = "argument:"
_SIMPLE = frozenset({"string", "integer", "number", "boolean"})
_MAX_DIGITS = 300


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form.

    Attributes:
        name: Name of the argument.
        field_name: Name of the field.
        kind: ``string``, ``integer``, ``number``, ``boolean``, or ``json`` for all other values.
        description: Description of the argument.
        required: Whether the tool requires it.
        choices: The allowed values, as texts; empty if any value is allowed.
        default: The value of a missing argument, as JSON; empty if the schema names none.
    """

    name: str
    field_name: str
    kind: str
    description: str
    required: bool
    choices: Sequence[str]
    default: str


def fields_of(parameters_json: str) -> list[Field]:
    """Returns a field for each argument of a tool; none if the schema cannot be read."""
    schema = _object(parameters_json)
    properties = schema.get("properties")
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    if not isinstance(properties, dict):
        return []
    return [_field(name, of, name in names) for name, of in properties.items()]


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = parse_json(text or "{}")
    except JsonTextError:
        return {}
    return value if isinstance(value, dict) else {}


def _field(name: str, schema: Any, required: bool) -> Field:
    schema = schema if isinstance(schema, dict) else {}
    values = schema.get("enum")
    choices = values if isinstance(values, list) and all(map(_is_text, values)) else []
    return Field(
        name=name,
        field_name=_PREFIX + name,
        kind=_kind(schema),
        description=str(schema.get("description", "")),
        required=required,
        choices=choices,
        default=json.dumps(schema["default"], ensure_ascii=False) if "default" in schema else "",
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _kind(schema: Mapping[str, Any]) -> str:
    """Returns the kind of a value; for an optional value, the kind other than null."""
    options = schema.get("anyOf")
    if isinstance(options, list):
        kinds = {
            _kind(option)
            for option in options
            if isinstance(option, dict) and option.get("type") != "null"
        }
        return kinds.pop() if len(kinds) == 1 else "json"
    kind = schema.get("type")
    return kind if isinstance(kind, str) and kind in _SIMPLE else "json"


def arguments_of(parameters_json: str, form: FormFields) -> str:
    """Returns the arguments in a form as a JSON object.

    Empty fields are left out, except for required texts.

    Raises:
        InvalidArgumentError: A field has no value of its kind.
    """
    if written := form.text(JSON_FIELD).strip():
        return written
    values: dict[str, Any] = {}
    violations: list[FieldViolation] = []
    for field in fields_of(parameters_json):
        text = form.text(field.field_name)
        if not text and not (field.required and field.kind == "string"):
            continue
        try:
            values[field.name] = _value(field.kind, text)
        except ValueError:
            article = "JSON" if field.kind == "json" else f"of the type {field.kind}"
            violations.append(FieldViolation(field.name, f"{text!r} is not {article}"))
    if violations:
        raise InvalidArgumentError("The tool was not run.", violations=violations)
    return json.dumps(values, ensure_ascii=False)


def _value(kind: str, text: str) -> Any:
    """Returns the value of a field.

    Raises:
        ValueError: The text is not a value of the kind.
    """
    match kind:
        case "string":
            return text
        case "boolean":
            if text not in ("true", "false"):
                raise ValueError(text)
            return text == "true"
        case "integer":
            if len(text) > _MAX_DIGITS:
                raise ValueError(text)
            return whole_number(text.strip())
        case "number":
            return finite_number(text.strip())
        case _:
            try:
                return parse_json(text)
            except JsonTextError as error:
                raise ValueError(text) from error
