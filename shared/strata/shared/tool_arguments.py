"""Parses the JSON arguments that a model wrote, and fits them to the tool's schema."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from jsonschema.exceptions import ValidationError

from strata.shared.bounded_validator import BoundedValidator, TooCostlyError, limited_steps
from strata.shared.json_text import JsonTextError, encodable_text, parse_json
from strata.shared.number_text import whole_number

MAX_ARGUMENT_CHARS = 1_000_000
INVALID = "Invalid arguments for"
"""Beginning of the message that refuses arguments."""
_MOST_STEPS = 100_000
_STEPS_PER_CHAR = 2
"""Steps of a check for each character of the arguments, beyond `_MOST_STEPS`.

A simple schema takes one, and nested alternatives multiply.
"""
STEPS_ON_EVENT_LOOP = 5_000
"""Steps of a check that may run on the event loop; they take about 15 ms."""
_MAX_PROBLEMS = 8
"""Maximum number of problems that one message names."""
_MAX_NAME_CHARS = 80
_MAX_NAMES = 20
_MAX_MESSAGE_CHARS = 200


class ArgumentsError(ValueError):
    """Arguments do not fit the schema; the message is for the model and says what to change."""


def fit_arguments(
    name: str,
    parameters: Mapping[str, Any],
    text: str,
    *,
    integers: range | None = None,
    explain: Callable[[Mapping[str, Any]], str | None] | None = None,
    most_steps: int | None = None,
) -> dict[str, Any]:
    """Returns the arguments of a call.

    Strict schemas make models write every argument. So an optional argument counts as left out if
    it is null, or empty (``""``, blanks, ``[]``, 0) where its schema allows no empty value.
    Numbers, booleans and lists that are written as strings are converted.

    Args:
        name: Name of the tool.
        parameters: JSON schema of the arguments, an object schema.
        text: The arguments as the model wrote them.
        integers: Range of integers that can be sent; None for all.
        explain: Returns a description of a problem that the schema cannot express, or None.
        most_steps: Maximum number of steps of the check (`limited_steps`); None for the limit
            of arguments of this length.

    Raises:
        ArgumentsError: The text is not a JSON object or does not fit the schema.
        TooCostlyError: The check takes more than `most_steps`.
    """
    value = _parse_object(name, text)
    try:
        with limited_steps(most_steps or _MOST_STEPS + _STEPS_PER_CHAR * len(text)):
            arguments = _members(value, parameters)
            problems = _first(_unsendable(arguments, "", integers))
            if not problems:
                problem = explain(arguments) if explain is not None else None
                if problem is not None:
                    raise ArgumentsError(problem)
                errors = BoundedValidator(parameters).iter_errors(arguments)
                problems = _first(map(describe_violation, errors))
    except TooCostlyError:
        if most_steps is not None:
            raise
        raise ArgumentsError(
            f"{INVALID} {name}: checking them against the schema of the tool takes too long."
            " Call the tool with shorter lists and texts, several times if necessary."
        ) from None
    if problems:
        raise ArgumentsError(f"{INVALID} {name}: {'; '.join(problems)}.")
    return arguments


def _first(problems: Iterator[str]) -> list[str]:
    """Returns the first problems, sorted, and a note if there are more.

    Every item of a list with 100,000 items can have a problem.
    """
    first = sorted(set(islice(problems, _MAX_PROBLEMS)))
    more = ["and more"] if next(problems, None) is not None else []
    return first + more


def _parse_object(name: str, text: str) -> dict[str, Any]:
    if len(text) > MAX_ARGUMENT_CHARS:
        raise ArgumentsError(f"{INVALID} {name}: they exceed {MAX_ARGUMENT_CHARS} characters.")
    try:
        value = parse_json(text if text.strip() else "{}")
    except JsonTextError as error:
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
        if name not in properties or not _is_absent(item, properties[name]) or name in required
    }


def _is_absent(value: Any, schema: Mapping[str, Any]) -> bool:
    """Returns whether an optional argument is empty because a strict schema required some value."""
    if value is None:
        return True
    empty = not value.strip() if isinstance(value, str) else value == [] or value == 0
    if not empty or isinstance(value, bool):
        return False
    return not BoundedValidator(schema).is_valid(value)


def _as_meant(value: Any, schema: Mapping[str, Any]) -> Any:
    declared = schema.get("type", ())
    type_names = {declared} if isinstance(declared, str) else set(declared)
    if isinstance(value, str) and "string" not in type_names:
        value = _unquoted(value, type_names)
    if isinstance(value, float) and "integer" in type_names and value.is_integer():
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


def _unquoted(text: str, type_names: Collection[str]) -> Any:
    kinds = [kind for name in type_names for kind in _QUOTED.get(name, ())]
    try:
        value = whole_number(text.strip(" ")) if kinds == [int] else parse_json(text)
    except ValueError:
        return text
    return value if type(value) in kinds else text


def _unsendable(value: Any, path: str, integers: range | None) -> Iterator[str]:
    """Yields values that cannot be sent or stored: NUL, unpaired surrogates, too large integers."""
    match value:
        case str() if problem := _bad_text(value):
            yield f"{_quoted(path)} {problem}"
        case int() if not isinstance(value, bool):
            if integers is not None and value not in integers:
                yield f"{_quoted(path)} is too large a number"
        case list():
            for index, item in enumerate(value):
                yield from _unsendable(item, _inside(path, f"[{index}]"), integers)
        case dict():
            for name, item in value.items():
                if problem := _bad_text(name):
                    yield f"the name {_quoted(name)} {problem}"
                inner = _inside(path, f".{name[:_MAX_NAME_CHARS]}").lstrip(".")
                yield from _unsendable(item, inner, integers)
        case _:
            pass


def _inside(path: str, name: str) -> str:
    # Truncated to the length that is shown, because it is made for every item of a list.
    return f"{path}{name}"[: _MAX_NAME_CHARS + 1]


def _bad_text(text: str) -> str:
    if "\0" in text:
        return "contains the character NUL"
    # JSON can express an unpaired surrogate; UTF-8 cannot.
    return "contains an incomplete character" if text != encodable_text(text) else ""


def describe_violation(error: ValidationError) -> str:
    """Describes the problem of a value, for the model that wrote it."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
    path = _quoted(path.lstrip(".")) if path else ""
    within = f" in {path}" if path else ""
    arguments: Mapping[str, Any] = error.instance if isinstance(error.instance, dict) else {}
    schema: Mapping[str, Any] = error.schema  # type: ignore[assignment]
    if error.validator == "required":
        return f"missing {_listed(n for n in schema['required'] if n not in arguments)}{within}"
    if error.validator == "additionalProperties":
        # An inner object can forbid all members.
        properties = schema.get("properties", {})
        takes = _listed(properties) if properties else ""
        unknown = _listed(sorted(set(arguments) - set(properties)))
        return f"unknown {unknown}{within} ({f'it takes {takes}' if takes else 'it takes none'})"
    if error.validator == "enum":
        # A long value is left out, so that the valid ones fit into the message.
        return f"{path or 'the object'} must be one of {_listed(map(str, schema['enum']))}"
    message = error.message
    if len(message) > _MAX_MESSAGE_CHARS:
        # The message begins with the value and ends with the problem; both ends are kept.
        message = f"{message[: _MAX_MESSAGE_CHARS // 2]}...{message[-_MAX_MESSAGE_CHARS // 2 :]}"
    return f"{path or 'the object'} is wrong: {message}"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _MAX_NAMES} more" if len(every) > _MAX_NAMES else ""
    return ", ".join(map(_quoted, every[:_MAX_NAMES])) + more


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MAX_NAME_CHARS else f"{text[:_MAX_NAME_CHARS]}...")


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
