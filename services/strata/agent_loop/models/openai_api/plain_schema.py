"""Rewrites JSON schemas for services that accept only a subset of OpenAPI's schemas. Pure.

These services refuse a request for a single unknown keyword. Keywords that the subset cannot
express are left out, so that the schema allows more, never less. Arguments are validated against
the original schema when a call is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata.agent_loop.domain.model.chat import JsonSchema

_KEPT = frozenset(
    {
        *("type", "format", "title", "description", "nullable", "enum", "items", "properties"),
        *("required", "anyOf", "minItems", "maxItems", "minLength", "maxLength", "minimum"),
        *("maximum", "pattern"),
    }
)
_FORMATS = {
    "string": frozenset({"date-time", "enum"}),
    "integer": frozenset({"int32", "int64"}),
    "number": frozenset({"float", "double"}),
}
_WORDS = frozenset({"title", "description", "nullable"})
# References in a schema from outside may be circular, or multiply.
_MAX_DEPTH = 20
_MAX_SCHEMAS = 2_000


@dataclass(slots=True)
class _Source:
    """The schema to rewrite, and how many schemas the result may still have."""

    root: JsonSchema
    left: int = _MAX_SCHEMAS


def to_plain(schema: JsonSchema) -> dict[str, Any]:
    """Rewrites a schema with the keywords of the subset; local references are resolved."""
    return _plain(schema, _Source(schema), 0)


def _plain(schema: Any, source: _Source, depth: int) -> dict[str, Any]:
    source.left -= 1
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or source.left < 0:
        return {}
    schema = _resolved(schema, source.root)
    plain = {name: value for name, value in schema.items() if name in _KEPT}
    _set_type(plain)
    _set_bounds(plain, schema)
    _set_values(plain, schema)
    properties = plain.get("properties")
    if isinstance(properties, Mapping) and (properties or not depth):
        plain["properties"] = {
            name: _plain(value, source, depth + 1) for name, value in properties.items()
        }
        declared = [name for name in plain.get("required", ()) if name in plain["properties"]]
        plain.pop("required", None)
        if declared:
            plain["required"] = declared
    else:
        plain.pop("properties", None)
        plain.pop("required", None)
        if depth and plain.get("type") == "object":
            # A nested object without properties is refused.
            del plain["type"]
            plain["description"] = f"{plain.get('description', '')} A JSON object.".strip()
    if "items" in plain or plain.get("type") == "array":
        plain["items"] = _plain(plain.get("items", {}), source, depth + 1)
    _set_options(plain, schema, source, depth)
    return plain


def _resolved(schema: JsonSchema, root: JsonSchema) -> JsonSchema:
    """Resolves a local reference, and merges the schemas of `allOf`."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        target: Any = root
        for key in reference.removeprefix("#").strip("/").split("/"):
            target = target.get(key, {}) if isinstance(target, Mapping) else {}
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**(target if isinstance(target, Mapping) else {}), **beside}
    parts = schema.get("allOf")
    if isinstance(parts, list):
        joined: dict[str, Any] = {}
        for part in [*parts, {name: value for name, value in schema.items() if name != "allOf"}]:
            if not isinstance(part, Mapping):
                continue
            properties = {**joined.get("properties", {}), **part.get("properties", {})}
            required = [*joined.get("required", ()), *part.get("required", ())]
            joined.update(part)
            if properties:
                joined["properties"] = properties
            if required:
                joined["required"] = required
        return joined
    return schema


def _set_type(plain: dict[str, Any]) -> None:
    kinds = plain.get("type")
    if isinstance(kinds, list):
        non_null = [kind for kind in kinds if kind != "null"]
        if len(non_null) < len(kinds):
            plain["nullable"] = True
        plain.pop("type")
        if len(non_null) == 1:
            plain["type"] = non_null[0]
        elif non_null:
            plain["anyOf"] = [{"type": kind} for kind in non_null]
    elif kinds == "null":
        plain.pop("type")
        plain["nullable"] = True
    if "format" in plain and plain["format"] not in _FORMATS.get(plain.get("type", ""), ()):
        plain.pop("format")


def _set_bounds(plain: dict[str, Any], schema: JsonSchema) -> None:
    step = 1 if plain.get("type") == "integer" else 0
    for name, bound, sign in (
        ("exclusiveMinimum", "minimum", 1),
        ("exclusiveMaximum", "maximum", -1),
    ):
        value = schema.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            plain.setdefault(bound, value + sign * step)


def _set_values(plain: dict[str, Any], schema: JsonSchema) -> None:
    """Adds the allowed values if all are texts; other values go into the description."""
    values = [schema["const"]] if "const" in schema else plain.pop("enum", None)
    plain.pop("enum", None)
    if not isinstance(values, list):
        return
    if None in values:
        plain["nullable"] = True
    non_null = [value for value in values if value is not None]
    if non_null and all(isinstance(value, str) and value for value in non_null):
        plain.setdefault("type", "string")
        if plain["type"] == "string":
            plain["enum"] = non_null
            return
    value_list = ", ".join(map(str, values))
    plain["description"] = f"{plain.get('description', '')} One of: {value_list}.".strip()


def _set_options(plain: dict[str, Any], schema: JsonSchema, source: _Source, depth: int) -> None:
    options = schema.get("anyOf", schema.get("oneOf", plain.get("anyOf")))
    plain.pop("anyOf", None)
    if not isinstance(options, list):
        return
    described = [_plain(option, source, depth + 1) for option in options]
    non_null = [option for option in described if set(option) - {"nullable"}]
    if len(non_null) < len(described) or any(option.get("nullable") for option in non_null):
        plain["nullable"] = True
    # A single option is merged, unless both restrict the same keyword.
    if len(non_null) == 1 and not _WORDS.issuperset(set(plain) & set(non_null[0])):
        plain["anyOf"] = non_null
    elif len(non_null) == 1:
        plain.update({**non_null[0], **plain})
    elif non_null:
        plain["anyOf"] = non_null
