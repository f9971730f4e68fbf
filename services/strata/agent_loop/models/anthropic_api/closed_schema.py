"""Rewrites schemas for Anthropic's structured output: closed objects, few keywords. Pure.

Unknown keywords go into the description, where the model reads them. The reply is validated
against the original schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strata.agent_loop.domain.model.chat import JsonSchema

_FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6"),
        "uuid",
    }
)
_HANDLED = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "anyOf", "oneOf"),
        *("allOf", "enum", "const", "title", "description", "default", "$comment", "examples"),
    }
)
_PRIMITIVE = (str, int, float, bool, type(None))


def to_closed(schema: JsonSchema) -> dict[str, Any] | None:
    """Rewrites a schema without references.

    Returns:
        The schema, or None if it cannot be expressed: an object with free keys, a schema that
        allows anything, or values that are objects.
    """
    if "oneOf" in schema and "anyOf" in schema:
        return None
    closed = {key: schema[key] for key in ("title", "description") if key in schema}
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    if not all(isinstance(value, _PRIMITIVE) for value in values):
        return None
    kinds = schema.get("type", "object" if "properties" in schema else ())
    if isinstance(kinds, list) and len(kinds) != 1 and not values:
        # A list of types becomes `anyOf`; each option has the rest of the schema.
        if {"anyOf", "oneOf", "allOf"}.intersection(schema):
            return None
        rest = {key: value for key, value in schema.items() if key not in closed}
        options = [to_closed({**rest, "type": kind}) for kind in kinds]
        return None if None in options else {**closed, "anyOf": options}
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    if "const" in schema:
        closed["const"] = schema["const"]
    elif values:
        closed["enum"] = list(values)
    elif kind:
        closed["type"] = kind
    notes = {key: value for key, value in schema.items() if key not in _HANDLED}
    if not _add_parts(closed, schema, kind, notes):
        return None
    if notes:
        other_keywords = json.dumps(notes, ensure_ascii=False)
        closed["description"] = f"{closed.get('description', '')} {other_keywords}".strip()
    return closed if {"type", "enum", "const", "anyOf", "allOf"}.intersection(closed) else None


def _add_parts(
    closed: dict[str, Any], schema: JsonSchema, kind: Any, notes: dict[str, Any]
) -> bool:
    """Adds the schemas inside a schema; False if one cannot be expressed."""
    for name, closed_name in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        if name in schema:
            options = [to_closed(option) for option in schema[name] if isinstance(option, Mapping)]
            if None in options or len(options) < len(schema[name]):
                return False
            closed[closed_name] = options
    if kind == "object":
        properties = schema.get("properties", {})
        if schema.get("additionalProperties", not properties) is not False:
            return False
        parts = {name: to_closed(part) for name, part in properties.items() if part is not True}
        if None in parts.values() or len(parts) < len(properties):
            return False
        closed.update(properties=parts, additionalProperties=False)
        if schema.get("required"):
            closed["required"] = [name for name in schema["required"] if name in parts]
    if kind == "array" and "items" in schema:
        items = schema["items"]
        part = to_closed(items) if isinstance(items, Mapping) else None
        if part is None:
            return False
        closed["items"] = part
    if kind == "array" and notes.get("minItems") in (0, 1):
        closed["minItems"] = notes.pop("minItems")
    if kind == "string" and notes.get("format") in _FORMATS:
        closed["format"] = notes.pop("format")
    return True
