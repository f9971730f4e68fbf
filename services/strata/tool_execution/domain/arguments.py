"""From the JSON text that a model wrote to arguments that fit the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from strata.tool_execution.domain.tools import Tool, ToolError

MAX_ARGUMENT_CHARS = 1_000_000


def parse_arguments(tool: Tool, text: str) -> dict[str, Any]:
    """Returns the arguments of a call.

    An optional argument given as null counts as left out, since strict schemas make
    models write one. Numbers written as text are taken as numbers.

    Raises:
        ToolError: The text is no JSON object or does not fit; says what to change.
    """
    arguments = _parse_object(tool.name, text)
    properties: Mapping[str, Any] = tool.parameters["properties"]
    required = tool.parameters.get("required", [])
    given = {
        name: _as_number(value, properties.get(name, {}))
        for name, value in arguments.items()
        if value is not None or name in required or name not in properties
    }
    problems = [
        _describe(error, properties)
        for error in Draft202012Validator(tool.parameters).iter_errors(given)
    ]
    if problems:
        raise ToolError(f"Invalid arguments for {tool.name}: {'; '.join(sorted(problems))}.")
    return given


def _parse_object(name: str, text: str) -> dict[str, Any]:
    if len(text) > MAX_ARGUMENT_CHARS:
        raise ToolError(
            f"Invalid arguments for {name}: they exceed {MAX_ARGUMENT_CHARS} characters."
        )
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolError(
            f"Invalid arguments for {name}: they are not valid JSON ({error})."
            " Call the tool again with one JSON object."
        ) from None
    if not isinstance(value, dict):
        raise ToolError(
            f"Invalid arguments for {name}: they must be one JSON object,"
            f" not {_kind(value)}. Call the tool again with one JSON object."
        )
    return value


def _as_number(value: Any, schema: Mapping[str, Any]) -> Any:
    kinds = schema.get("type", ())
    wanted = {kinds} if isinstance(kinds, str) else set(kinds)
    if isinstance(value, str) and wanted & {"integer", "number"}:
        try:
            return int(value) if "integer" in wanted else float(value)
        except ValueError:
            return value
    if isinstance(value, float) and "integer" in wanted and value.is_integer():
        return int(value)
    return value


def _describe(error: ValidationError, properties: Mapping[str, Any]) -> str:
    given: Mapping[str, Any] = error.instance if isinstance(error.instance, dict) else {}
    if error.validator == "required":
        wanted: Sequence[str] = error.schema["required"]  # type: ignore[index]
        missing = [name for name in wanted if name not in given]
        return f"missing {', '.join(repr(name) for name in missing)}"
    if error.validator == "additionalProperties":
        unknown = sorted(set(given) - set(properties))
        return (
            f"unknown {', '.join(repr(name) for name in unknown)}"
            f" (it takes {', '.join(repr(name) for name in properties)})"
        )
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
    return f"{place.lstrip('.')!r} is wrong: {error.message[:200]}"


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
