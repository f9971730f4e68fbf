"""From the JSON text that a model wrote to arguments that fit the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

MAX_ARGUMENT_CHARS = 1_000_000
INVALID = "Invalid arguments for"
"""How the refusal of arguments begins."""


class ArgumentsError(ValueError):
    """Arguments do not fit; the text is written for the model and says what to change."""


def fit_arguments(
    name: str,
    parameters: Mapping[str, Any],
    text: str,
    *,
    integers: range | None = None,
    explain: Callable[[Mapping[str, Any]], str | None] | None = None,
) -> dict[str, Any]:
    """Returns the arguments of a call.

    An optional argument given as null counts as left out, since strict schemas make
    models write one. Numbers, truth values and lists written as text are taken for what they say.

    Args:
        name: Name of the tool.
        parameters: JSON schema of the arguments, an object schema.
        text: What the model wrote.
        integers: Whole numbers that can be sent; None for all.
        explain: Says in words what is wrong where the schema cannot.

    Raises:
        ArgumentsError: The text is no JSON object or does not fit.
    """
    given = _members(_parse_object(name, text), parameters)
    problems = set(_unsendable(given, "", integers))
    if not problems:
        problem = explain(given) if explain is not None else None
        if problem is not None:
            raise ArgumentsError(problem)
        errors = Draft202012Validator(parameters).iter_errors(given)
        problems = {_describe(error) for error in errors}
    if problems:
        raise ArgumentsError(f"{INVALID} {name}: {'; '.join(sorted(problems))}.")
    return given


def _parse_object(name: str, text: str) -> dict[str, Any]:
    if len(text) > MAX_ARGUMENT_CHARS:
        raise ArgumentsError(f"{INVALID} {name}: they exceed {MAX_ARGUMENT_CHARS} characters.")
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ArgumentsError(
            f"{INVALID} {name}: they are not valid JSON ({error})."
            " Call the tool again with one JSON object."
        ) from None
    if not isinstance(value, dict):
        raise ArgumentsError(
            f"{INVALID} {name}: they must be one JSON object,"
            f" not {_kind(value)}. Call the tool again with one JSON object."
        )
    return value


def _members(value: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    return {
        name: _as_meant(item, properties.get(name, {}))
        for name, item in value.items()
        if item is not None or name in required or name not in properties
    }


def _as_meant(value: Any, schema: Mapping[str, Any]) -> Any:
    named = schema.get("type", ())
    wanted = {named} if isinstance(named, str) else set(named)
    if isinstance(value, str) and "string" not in wanted:
        value = _unquoted(value, wanted)
    if isinstance(value, float) and "integer" in wanted and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_as_meant(item, schema.get("items", {})) for item in value]
    return _members(value, schema) if isinstance(value, dict) else value


_QUOTED: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
}


def _unquoted(text: str, wanted: Collection[str]) -> Any:
    kinds = [kind for name in wanted for kind in _QUOTED.get(name, ())]
    try:
        value = int(text) if kinds == [int] else json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if type(value) in kinds else text


def _unsendable(value: Any, place: str, integers: range | None) -> list[str]:
    """Says what no request could carry or no tier store: NUL, half characters, huge numbers."""
    match value:
        case str():
            if "\0" in value:
                return [f"{place!r} holds the character NUL"]
            # JSON can write half of a character; UTF-8 cannot.
            broken = not value.isascii() and value != value.encode("utf-8", "replace").decode()
            return [f"{place!r} holds an incomplete character"] if broken else []
        case bool():
            return []
        case int():
            sent = integers is None or value in integers
            return [] if sent else [f"{place!r} is too large a number"]
        case list():
            inner = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
        case dict():
            inner = [(f"{place}.{name}".lstrip("."), item) for name, item in value.items()]
        case _:
            return []
    return [problem for name, item in inner for problem in _unsendable(item, name, integers)]


def _describe(error: ValidationError) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
    path = path.lstrip(".")
    within = f" in {path!r}" if path else ""
    given: Mapping[str, Any] = error.instance if isinstance(error.instance, dict) else {}
    schema: Mapping[str, Any] = error.schema  # type: ignore[assignment]
    if error.validator == "required":
        missing = [name for name in schema["required"] if name not in given]
        return f"missing {', '.join(repr(name) for name in missing)}{within}"
    if error.validator == "additionalProperties":
        known = schema["properties"]
        unknown = ", ".join(repr(name) for name in sorted(set(given) - set(known)))
        takes = ", ".join(repr(name) for name in known)
        return f"unknown {unknown}{within} ({f'it takes {takes}' if takes else 'it takes none'})"
    return f"{path!r} is wrong: {error.message[:200]}"


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
