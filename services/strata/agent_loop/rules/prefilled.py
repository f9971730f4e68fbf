"""Arguments that rules prefill for a tool. They override the model's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strata.agent_loop.rules.refusals import INVALID_PREFILLED
from strata.agent_loop.rules.solver import Prefilled
from strata.shared.json_text import JsonTextError, parse_json


def merged(
    arguments: str, prefilled: Sequence[Prefilled], parameters: Mapping[str, Any]
) -> tuple[str, str | None]:
    """Merges prefilled arguments into a call's own; returns the result and an error text, if any.

    Args:
        arguments: The model's arguments: a JSON object, or empty.
        prefilled: The prefilled arguments, in the order in which they apply.
        parameters: JSON schema of the tool's arguments.
    """
    if not prefilled:
        return arguments, None
    merged_arguments: dict[str, Any] = parse_json(arguments) if arguments.strip() else {}
    for entry in prefilled:
        problems = problems_of(entry.arguments, parameters)
        if problems:
            return arguments, f"{INVALID_PREFILLED} (source={entry.source}): {'; '.join(problems)}"
        merged_arguments.update(parse_json(entry.arguments))
    return json.dumps(merged_arguments, ensure_ascii=False), None


def problems_of(arguments: str, parameters: Mapping[str, Any]) -> list[str]:
    """Returns problems of prefilled arguments: type, enum, const, anyOf and oneOf are checked.

    Args:
        arguments: A JSON object, as text.
        parameters: JSON schema of the tool's arguments.
    """
    try:
        values = parse_json(arguments)
    except JsonTextError as error:
        return [f"they are not valid JSON ({error})"]
    if not isinstance(values, dict):
        return ["they are not a JSON object"]
    properties = parameters.get("properties", {})
    problems = []
    for name, value in values.items():
        if name not in properties:
            problems.append(f"the tool has no argument {name!r}")
        elif not _fits(value, properties[name]):
            problems.append(f"{name!r} must not be {json.dumps(value, ensure_ascii=False)[:200]}")
    return problems


def _fits(value: Any, schema: Any) -> bool:
    """Returns whether a value satisfies type, enum, const, anyOf and oneOf of a schema."""
    if not isinstance(schema, Mapping):
        return schema is not False
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_of(value, kind) for kind in kinds):
        return False
    if "enum" in schema and not any(_equal(value, allowed) for allowed in schema["enum"]):
        return False
    if "const" in schema and not _equal(value, schema["const"]):
        return False
    if "anyOf" in schema and not any(_fits(value, option) for option in schema["anyOf"]):
        return False
    return "oneOf" not in schema or sum(_fits(value, option) for option in schema["oneOf"]) == 1


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _is_of(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "integer" | "number" if isinstance(value, bool):
            return False
        case "integer":
            return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        case "number":
            return isinstance(value, int | float)
        case _:
            return True
