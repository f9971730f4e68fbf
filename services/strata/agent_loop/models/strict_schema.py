"""Strict tool schemas that leave optional parameters optional.

A strict schema lists every property as required, which forces the model to invent values for
optional ones. Therefore optional properties become nullable, and the nulls are removed from the
reply again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strata.agent_loop.domain.model.chat import JsonSchema
from strata.shared.json_text import JsonTextError, parse_json

# Keywords of OpenAI's strict mode; a schema with other keywords is sent unchanged, not strict.
_KEYWORDS = frozenset(
    {
        "type",
        "description",
        "title",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "default",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
    }
)
# Annotations, which do not restrict values and can be dropped.
_DROPPED = frozenset({"default", "title"})
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": (int, float),
    "number": (int, float),
    "null": type(None),
}


def to_strict(schema: JsonSchema) -> dict[str, Any] | None:
    """Rewrites a schema for strict mode.

    Returns:
        The strict schema, or None if it cannot be expressed: an object with free keys, a
        reference, or a keyword that strict mode does not know.
    """
    if not _KEYWORDS.issuperset(schema):
        return None
    strict = {key: value for key, value in schema.items() if key not in _DROPPED}
    if schema.get("type") == "object" or "properties" in schema:
        return _strict_object(schema, strict)
    if "anyOf" in schema:
        options = [to_strict(option) for option in schema["anyOf"]]
        if None in options:
            return None
        strict["anyOf"] = options
    if "items" in schema:
        items = to_strict(schema["items"])
        if items is None:
            return None
        strict["items"] = items
    elif "array" in _types(schema):
        return None
    # A schema without a type allows anything, which strict mode does not.
    return strict if {"type", "anyOf", "enum", "const"}.intersection(strict) else None


def _strict_object(schema: JsonSchema, strict: dict[str, Any]) -> dict[str, Any] | None:
    properties: Mapping[str, Any] = schema.get("properties", {})
    # Hand-written schemas often omit `additionalProperties`; an object without properties is a map.
    free_keys = schema.get("additionalProperties", "properties" not in schema)
    # An object cannot have further conditions.
    if free_keys is not False or {"anyOf", "enum", "const"}.intersection(schema):
        return None
    required = set(schema.get("required", ()))
    converted: dict[str, Any] = {}
    for name, definition in properties.items():
        inner = to_strict(definition)
        if inner is None:
            return None
        converted[name] = inner if name in required else _nullable(inner)
    strict.update(
        type="object",
        properties=converted,
        required=list(converted),
        additionalProperties=False,
    )
    return strict


def _types(schema: Mapping[str, Any]) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if _allows_null(schema):
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "type" not in schema or "const" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    nullable = {**schema, "type": [*_types(schema), "null"]}
    if "enum" in schema:
        nullable["enum"] = [*schema["enum"], None]
    return nullable


def _allows_null(schema: Mapping[str, Any]) -> bool:
    if "enum" in schema:
        return None in schema["enum"]
    if "const" in schema:
        return schema["const"] is None
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if options and any(map(_allows_null, options)):
        return True
    # A schema without restrictions allows any value.
    return "null" in _types(schema) if "type" in schema else not options


def drop_invented_nulls(arguments: str, schema: JsonSchema) -> str:
    """Removes the nulls that only the strict form of `schema` allowed.

    Arguments that are not a JSON object, or have no such null, are returned unchanged.
    """
    try:
        value = parse_json(arguments)
    except JsonTextError:
        return arguments
    if not isinstance(value, dict):
        return arguments
    pruned = _prune(value, schema)
    return arguments if pruned == value else json.dumps(pruned, ensure_ascii=False)


def _prune(value: Any, schema: Mapping[str, Any]) -> Any:
    schema = _option_of(value, schema)
    if isinstance(value, dict):
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = schema.get("required", ())
        return {
            name: _prune(item, properties.get(name, {}))
            for name, item in value.items()
            if item is not None
            or name in required
            or name not in properties
            or _allows_null(properties[name])
        }
    if isinstance(value, list):
        return [_prune(item, schema.get("items", {})) for item in value]
    return value


def _option_of(value: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the option of `anyOf` that a value matches; the schema itself without options.

    Strict objects have all members, so that names and constants identify the option.
    """
    while "properties" not in schema and "items" not in schema:
        options = schema.get("anyOf", ())
        option = next((option for option in options if _may_be(value, option)), None)
        if option is None:
            break
        schema = option
    return schema


def _may_be(value: Any, schema: Mapping[str, Any]) -> bool:
    """Returns whether a value seems to match a schema, judged by its members."""
    if isinstance(value, dict) and "properties" in schema:
        properties: Mapping[str, Any] = schema["properties"]
        return (
            properties.keys() >= value.keys()
            and all(name in value for name in schema.get("required", ()))
            and all(_is_allowed(item, properties[name]) for name, item in value.items())
        )
    if isinstance(value, list) and "items" in schema:
        return not value or _may_be(value[0], schema["items"])
    if "anyOf" in schema:
        return any(_may_be(value, option) for option in schema["anyOf"])
    return _is_allowed(value, schema) and not {"properties", "items"}.intersection(schema)


def _is_allowed(value: Any, schema: Mapping[str, Any]) -> bool:
    """Returns whether the constant or the plain type of a schema allows a value."""
    if "const" in schema:
        return bool(value == schema["const"])
    kinds = [_TYPES[kind] for kind in _types(schema) if kind in _TYPES]
    return value is None or not kinds or isinstance(value, tuple(kinds))
