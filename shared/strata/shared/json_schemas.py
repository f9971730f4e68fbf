"""Reads JSON schemas from clients and models.

It checks them, inlines their references, and forbids other properties than the declared ones at the
root, unless the schema says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from strata.shared.bounded_validator import BoundedValidator, TooCostlyError, limited_steps
from strata.shared.json_text import MAX_JSON_DEPTH, JsonTextError, is_deeper, parse_json
from strata.shared.tool_arguments import describe_violation

MAX_CHARS = 64_000
MAX_WRITTEN_OUT_CHARS = 4 * MAX_CHARS
"""Limit once references are inlined: a long definition with many references grows a lot."""
_TOO_DEEP = f"is nested deeper than {MAX_JSON_DEPTH} levels"
MAX_SCHEMAS = 2_000
_DEEPEST = 24
_MAPS = ("properties", "dependentSchemas")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
# Remote references would be fetched, and a pattern can take exponential time.
_REFUSED = frozenset(
    {
        *("$id", "$schema", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"),
        *("pattern", "patternProperties", "propertyNames", "unevaluatedProperties"),
        "unevaluatedItems",
    }
)


class UnusableSchemaError(Exception):
    """A schema cannot be used; the message has the reason."""


def read_schema(text: str, *, most_schemas: int = MAX_SCHEMAS) -> dict[str, Any]:
    """Returns the schema of an object, such as the arguments of a tool, from its JSON.

    References to its own parts, such as ``$defs``, are inlined. An object without
    ``additionalProperties`` accepts no further members, unless its alternatives or conditions
    declare some.

    Args:
        text: The JSON.
        most_schemas: Maximum number of schemas and subschemas, once references are inlined.

    Raises:
        UnusableSchemaError: The text is not such a schema.
    """
    if len(text) > MAX_CHARS:
        raise UnusableSchemaError(f"exceeds {MAX_CHARS} characters")
    try:
        schema = parse_json(text)
    except JsonTextError as error:
        # The position in the parser's message would not help the client.
        problem = str(error).partition(": line ")[0]
        raise UnusableSchemaError(f"is not JSON: {problem}") from None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise UnusableSchemaError("must be a JSON schema: an object with properties")
    if schema.get("type", "object") != "object":
        raise UnusableSchemaError('must describe an object: its type must be "object"')
    problem = unstorable(schema)
    if problem:
        raise UnusableSchemaError(problem)
    definitions = {**_map(schema, "definitions"), **_map(schema, "$defs")}
    schema.pop("$schema", None)
    whole = _Inliner(schema, definitions, most_schemas).inline(schema, (), 0)
    if is_longer(whole, MAX_WRITTEN_OUT_CHARS):
        raise UnusableSchemaError(
            f"exceeds {MAX_WRITTEN_OUT_CHARS} characters once its references are inlined"
        )
    try:
        Draft202012Validator.check_schema(whole)
    except (SchemaError, RecursionError) as error:
        problem = error.message if isinstance(error, SchemaError) else "nested too deeply"
        raise UnusableSchemaError(f"is not a JSON schema: {problem[:200]}") from None
    properties = whole.get("properties", {})
    closed = {} if _declared_in_parts(whole) - set(properties) else {"additionalProperties": False}
    return {
        **closed,
        **whole,
        "type": "object",
        "properties": properties,
        "required": [name for name in whole.get("required", ()) if name in properties],
    }


def _declared_in_parts(schema: Mapping[str, Any]) -> set[str]:
    """Returns the members that alternatives and conditions of an object schema declare.

    ``additionalProperties`` beside them would forbid these members.
    """
    parts = [part for key in ("anyOf", "allOf", "oneOf") for part in schema.get(key, ())]
    parts += [schema[key] for key in ("if", "then", "else") if key in schema]
    parts += schema.get("dependentSchemas", {}).values()
    names: set[str] = set()
    for part in parts:
        names.update(part.get("properties", ()), _declared_in_parts(part))
    return names


class _Inliner:
    def __init__(
        self, root: Mapping[str, Any], definitions: Mapping[str, Any], most_schemas: int
    ) -> None:
        self._root = root
        self._definitions = definitions
        self._most = most_schemas
        self._nodes = 0

    def inline(self, schema: Any, within: tuple[str, ...], depth: int) -> Any:
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        if not isinstance(schema, dict):
            return schema
        self._check_size(depth)
        refused = sorted(_REFUSED.intersection(schema))
        if refused:
            raise UnusableSchemaError(f"uses {refused[0]!r}, which is not supported")
        if "$ref" in schema:
            return self._resolved(schema, within, depth)
        inlined = {
            key: value for key, value in schema.items() if key not in ("$defs", "definitions")
        }
        for key in _MAPS:
            if isinstance(inlined.get(key), dict):
                inlined[key] = {
                    name: self.inline(schema, within, depth + 1)
                    for name, schema in inlined[key].items()
                }
        for key in _LISTS:
            if isinstance(inlined.get(key), list):
                inlined[key] = [self.inline(schema, within, depth + 1) for schema in inlined[key]]
        for key in _SINGLE:
            if key in inlined and not (
                key == "additionalProperties" and inlined[key] in (True, False)
            ):
                inlined[key] = self.inline(inlined[key], within, depth + 1)
        return inlined

    def _check_size(self, depth: int) -> None:
        self._nodes += 1
        if self._nodes > self._most:
            raise UnusableSchemaError(
                f"has more than {self._most} schemas and subschemas once its references are inlined"
            )
        if depth > _DEEPEST:
            raise UnusableSchemaError(f"nests schemas deeper than {_DEEPEST} levels")

    def _resolved(self, schema: dict[str, Any], within: tuple[str, ...], depth: int) -> Any:
        reference = str(schema["$ref"])
        definition = self._definition(reference)
        if definition is None:
            raise UnusableSchemaError(
                f"refers to {reference[:100]!r}, which is not among its $defs"
            )
        if reference in within:
            raise UnusableSchemaError(f"has a definition that holds itself: {reference[:100]!r}")
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return self.inline({**definition, **beside}, (*within, reference), depth + 1)

    def _definition(self, reference: str) -> Mapping[str, Any] | None:
        """Returns the part of the schema that a reference names; None if there is none.

        Generators for TypeScript refer to the first use of a schema: ``#/properties/a``.
        """
        for place in ("#/$defs/", "#/definitions/"):
            name = reference.removeprefix(place)
            definition = self._definitions.get(name)
            if name != reference and isinstance(definition, dict):
                return definition
        if reference != "#" and not reference.startswith("#/"):
            return None
        part: Any = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, list):
                part = dict(zip(map(str, range(len(part))), part, strict=True)).get(key)
            else:
                part = part.get(key) if isinstance(part, dict) else None
        return part if isinstance(part, dict) else None


def is_longer(value: Any, most_chars: int) -> bool:
    """Returns whether the JSON of a value has more characters; stops encoding at the limit.

    A value that is nested too deeply to be encoded counts as longer.
    """
    chars = 0
    try:
        for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            chars += len(piece)
            if chars > most_chars:
                return True
    except RecursionError:
        return True
    return False


def _map(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    members = schema.get(key, {})
    return members if isinstance(members, dict) else {}


def unstorable(value: Any) -> str:
    """Returns why a JSON value cannot be stored or sent; empty if it can."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return "holds half a character, which is not text"
    except RecursionError:
        return _TOO_DEEP
    except (ValueError, TypeError):
        return "holds a number that JSON does not have"
    if is_deeper(value):
        return _TOO_DEEP
    # NUL is always escaped. The escape may also be part of a text, so the value decides.
    waiting = [value] if "\\u0000" in text else []
    while waiting:
        match waiting.pop():
            case str() as text if "\0" in text:
                return "contains the character NUL"
            case list() as items:
                waiting.extend(items)
            case dict() as members:
                waiting.extend((*members, *members.values()))
            case _:
                pass
    return ""


_MOST_STEPS = 100_000


def first_violation(schema: Mapping[str, Any], value: Any) -> str:
    """Returns the first violation of a schema by a JSON value; empty if there is none.

    The cost is bounded: schemas and values are untrusted, and nested alternatives multiply.

    Args:
        schema: The result of `read_schema`.
        value: The value.
    """
    try:
        with limited_steps(_MOST_STEPS):
            error = next(BoundedValidator(schema).iter_errors(value), None)
    except TooCostlyError:
        return "the check against the schema takes too long"
    return "" if error is None else describe_violation(error)
