"""The form of a tool that the APIs of OpenAI and Anthropic accept. Pure.

They refuse each request that offers a tool with a schema they do not support, so one tool of an MCP
server would end all turns of an agent. Conditions that cannot be expressed are added to the
description. Arguments are validated against the original schema when a call is run (decision 0194).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strata.agent_loop.domain.model.chat import JsonSchema, ToolSchema

# Refused at the top level only: by OpenAI all of them, by Anthropic the first three.
_NOT_AT_TOP = ("anyOf", "oneOf", "allOf", "enum", "not")
# Anthropic refuses other names of properties at the top level.
_PLAIN_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MAPS = ("properties", "dependentSchemas")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_MAX_NOTE_CHARS = 2_000

Properties = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as it is sent.

    Attributes:
        description: The description, with what the schema cannot express.
        parameters: The schema of the arguments.
    """

    description: str
    parameters: dict[str, Any]


def offered_tool(tool: ToolSchema, *, plain_names: bool = False) -> OfferedTool:
    """Returns the form of a tool that is accepted; it allows more arguments, never less.

    Args:
        tool: The tool.
        plain_names: Whether the service accepts only plain names of properties (Anthropic). The
            others are described, so that the model can write them.
    """
    parameters = _with_items(tool.parameters)
    notes = []
    conditions = {key: parameters.pop(key) for key in _NOT_AT_TOP if key in parameters}
    if conditions:
        properties, required = _members(tool.parameters)
        parameters["properties"] = {
            name: _with_items(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})
            for name, schemas in properties.items()
        }
        parameters["required"] = required
        notes += _note("The arguments must also match this JSON schema:", conditions)
    properties = parameters.get("properties", {})
    odd = {name: schema for name, schema in properties.items() if not _is_plain(name)}
    if plain_names and odd:
        parameters["properties"] = {
            name: schema for name, schema in properties.items() if name not in odd
        }
        parameters["additionalProperties"] = True
        required = [name for name in parameters.get("required", ()) if name in odd]
        notes += _note("It also takes these arguments, with exactly these names:", odd) or _note(
            "It also takes the arguments", [*odd]
        )
        if required:
            notes += _note("Required of them are", required)
    if "required" in parameters:
        members = parameters.get("properties", {})
        parameters["required"] = [name for name in parameters["required"] if name in members]
    return OfferedTool("\n".join([tool.description, *notes]), parameters)


def _is_plain(name: str) -> bool:
    return _PLAIN_NAME.fullmatch(name) is not None


def _note(text: str, value: Any) -> list[str]:
    """Returns a note with the JSON of a value; none if it is too long."""
    encoded = json.dumps(value, ensure_ascii=False)
    return [f"{text} {encoded}"] if len(encoded) <= _MAX_NOTE_CHARS else []


def _members(schema: JsonSchema) -> tuple[Properties, list[str]]:
    """Returns the properties of a schema and of its alternatives, and the required ones.

    A property that several alternatives declare has several schemas, unless the schema itself
    declares it.
    """
    own: Properties = {name: [value] for name, value in schema.get("properties", {}).items()}
    required = dict.fromkeys(schema.get("required", ()))
    others: Properties = {}
    for key in ("allOf", "anyOf", "oneOf"):
        parts = [_members(part) for part in _mappings(schema.get(key, ()))]
        for properties, _ in parts:
            for name, schemas in properties.items():
                known = others.setdefault(name, [])
                known += [value for value in schemas if value not in known]
        names = [set(required_of_part) for _, required_of_part in parts]
        if names:
            common = set.union(*names) if key == "allOf" else set.intersection(*names)
            required.update(dict.fromkeys(sorted(common)))
    return {**others, **own}, list(required)


def _mappings(parts: Any) -> Iterable[JsonSchema]:
    return [part for part in parts if isinstance(part, Mapping)]


def _with_items(schema: Any) -> Any:
    """Returns a schema in which each array has `items`: OpenAI refuses those without."""
    if not isinstance(schema, Mapping):
        return schema
    changed = dict(schema)
    for key in _MAPS:
        if isinstance(changed.get(key), Mapping):
            changed[key] = {name: _with_items(part) for name, part in changed[key].items()}
    for key in _LISTS:
        if isinstance(changed.get(key), list):
            changed[key] = [_with_items(part) for part in changed[key]]
    for key in _SINGLE:
        if key in changed:
            changed[key] = _with_items(changed[key])
    kinds = changed.get("type")
    if kinds == "array" or (isinstance(kinds, list) and "array" in kinds):
        changed.setdefault("items", {})
    return changed
