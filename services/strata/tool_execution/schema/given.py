"""Schemas that come from outside: checked, closed, and without references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from strata.shared.json_text import JsonTextError, parse_json
from strata.tool_execution.schema.problems import unstorable

MAX_CHARS = 64_000
_MOST_NODES = 2_000
_DEEPEST = 24
_MAPS = ("properties", "dependentSchemas")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
# References to elsewhere would be fetched, and a pattern can keep the checker busy for years.
_REFUSED = frozenset(
    {
        *("$id", "$schema", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"),
        *("pattern", "patternProperties", "propertyNames", "unevaluatedProperties"),
        "unevaluatedItems",
    }
)


class GivenSchemaError(Exception):
    """A schema that cannot be used; says why."""


def read_schema(text: str) -> dict[str, Any]:
    """Returns the schema of a tool's arguments from its JSON.

    References to its own ``$defs`` are written out. An object that does not say so takes no other
    members.

    Raises:
        GivenSchemaError: It is no such schema.
    """
    if len(text) > MAX_CHARS:
        raise GivenSchemaError(f"exceeds {MAX_CHARS} characters")
    try:
        schema = parse_json(text)
    except JsonTextError as error:
        raise GivenSchemaError(f"is no JSON: {error}") from None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise GivenSchemaError("must be a JSON schema: an object with properties")
    if schema.get("type", "object") != "object":
        raise GivenSchemaError("must describe an object: a tool takes its arguments by name")
    unclean = unstorable(schema)
    if unclean:
        raise GivenSchemaError(unclean)
    definitions = {**_map(schema, "definitions"), **_map(schema, "$defs")}
    schema.pop("$schema", None)
    whole = _Inliner(definitions).inline(schema, (), 0)
    try:
        Draft202012Validator.check_schema(whole)
    except (SchemaError, RecursionError) as error:
        said = error.message if isinstance(error, SchemaError) else "nested too deeply"
        raise GivenSchemaError(f"is no JSON schema: {said[:200]}") from None
    properties = whole.get("properties", {})
    return {
        "additionalProperties": False,
        **whole,
        "type": "object",
        "properties": properties,
        "required": [name for name in whole.get("required", ()) if name in properties],
    }


class _Inliner:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._nodes = 0

    def inline(self, schema: Any, within: tuple[str, ...], depth: int) -> Any:
        if not isinstance(schema, dict):
            return schema
        self._nodes += 1
        if self._nodes > _MOST_NODES or depth > _DEEPEST:
            raise GivenSchemaError("is too large for a model to read")
        refused = sorted(_REFUSED.intersection(schema))
        if refused:
            raise GivenSchemaError(f"uses {refused[0]!r}, which tools cannot use")
        if "$ref" in schema:
            return self._resolved(schema, within, depth)
        done = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
        for key in _MAPS:
            if isinstance(done.get(key), dict):
                done[key] = {
                    name: self.inline(each, within, depth + 1) for name, each in done[key].items()
                }
        for key in _LISTS:
            if isinstance(done.get(key), list):
                done[key] = [self.inline(each, within, depth + 1) for each in done[key]]
        for key in _SINGLE:
            done.update({key: self.inline(done[key], within, depth + 1)} if key in done else {})
        return done

    def _resolved(self, schema: dict[str, Any], within: tuple[str, ...], depth: int) -> Any:
        reference = schema["$ref"]
        name = str(reference).rpartition("/")[2]
        if reference not in (f"#/$defs/{name}", f"#/definitions/{name}"):
            raise GivenSchemaError(
                f"refers to {str(reference)[:100]!r}, which is not among its $defs"
            )
        if name not in self._definitions or not isinstance(self._definitions[name], dict):
            raise GivenSchemaError(f"refers to {name[:100]!r}, which is not among its $defs")
        if name in within:
            raise GivenSchemaError(f"has a definition that holds itself: {name[:100]!r}")
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        meant = {**self._definitions[name], **beside}
        return self.inline(meant, (*within, name), depth + 1)


def _map(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = schema.get(key, {})
    return found if isinstance(found, dict) else {}
