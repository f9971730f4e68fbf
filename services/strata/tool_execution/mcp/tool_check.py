"""Checks the tools that a server lists, and maps their names to names in the registry.

Descriptions and schemas of a server are untrusted content that reaches a model. Each tool is
checked separately, so that an invalid one does not affect the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from strata.shared.json_schemas import MAX_CHARS, UnusableSchemaError, read_schema, unstorable
from strata.tool_execution.domain.mcp import ReportedTool
from strata.tool_execution.domain.registry import MAX_NAME
from strata.tool_execution.schema.derive import MAX_DESCRIPTION_CHARS

MAX_REMOTE_NAME = 200
_ODD_NAME = f"its name is empty, has more than {MAX_REMOTE_NAME} characters or unprintable ones"
_SEPARATOR = "__"
_UNFIT = re.compile(r"[^A-Za-z0-9_\-]")
_MAPS = ("properties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
# Keywords that are removed. They only restrict values or name the schema. The server validates its
# arguments itself, and a malicious pattern could block the validator of Strata for years.
_REMOVED_KEYWORDS = frozenset(
    {
        *("$id", "$schema", "$comment", "pattern", "patternProperties", "propertyNames"),
        *("unevaluatedProperties", "unevaluatedItems"),
    }
)
_BOUNDS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
# A schema in which one of these is null is not valid. Null counts as left out: servers in Go, Java
# and C# write empty fields so.
_NEVER_NULL = frozenset(
    {
        *("type", "format", "enum", "required", "title", "description", "examples", "$ref"),
        *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "multipleOf"),
        *("minProperties", "maxProperties", "readOnly", "writeOnly", "deprecated"),
        *(*_MAPS, *_LISTS, *_SINGLE, *(keyword for pair in _BOUNDS for keyword in pair)),
    }
)
_DEEPEST = 64


def check_tools(server: str, server_tools: Sequence[Any]) -> list[ReportedTool]:
    """Returns the listed tools of a server, each with its problem, if any.

    Args:
        server: Name of the server.
        server_tools: Tools as the server sent them, unchecked. Those without a name are left out.
    """
    tools: dict[str, ReportedTool] = {}
    used_names: set[str] = set()
    unusable_names: list[str] = []
    for item in server_tools:
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            continue
        if not _nameable(name):
            unusable_names.append(name)
            continue
        if name in tools:
            tools[name] = ReportedTool(name, tools[name].tool_name, problem="it is listed twice")
            continue
        tool_name = registry_name(server, name)
        if tool_name in used_names:
            tools[name] = ReportedTool(
                name, tool_name, problem="its name is too similar to the name of another tool"
            )
            continue
        used_names.add(tool_name)
        tools[name] = _checked(name, tool_name, item)
    for name in unusable_names:
        shown = _printable(name)
        # A valid name comes first.
        tools.setdefault(
            shown, ReportedTool(shown, registry_name(server, shown), problem=_ODD_NAME)
        )
    return list(tools.values())


def registry_name(server: str, name: str) -> str:
    """Returns ``server__tool``; a name with invalid characters or too long gets a hash instead."""
    full_name = f"{server}{_SEPARATOR}{name}"
    fit = _UNFIT.sub("_", full_name)
    if fit == full_name and len(full_name) <= MAX_NAME:
        return full_name
    digest = hashlib.sha256(full_name.encode()).hexdigest()[:8]
    return f"{fit[: MAX_NAME - len(digest) - 1]}_{digest}"


def _nameable(name: str) -> bool:
    return 0 < len(name) <= MAX_REMOTE_NAME and name.isprintable() and not unstorable(name)


def _printable(name: str) -> str:
    """Returns the form in which an invalid name is shown."""
    printable = [c if _nameable(c) else "\ufffd" for c in name[:MAX_REMOTE_NAME]]
    return "".join(printable) or "\ufffd"


def _checked(name: str, tool_name: str, item: Mapping[str, Any]) -> ReportedTool:
    description = item.get("description") or item.get("title") or name
    if not isinstance(description, str) or unstorable(description):
        return ReportedTool(
            name, tool_name, problem="its description is not text that can be stored"
        )
    description = description.strip() or name
    if len(description) > MAX_DESCRIPTION_CHARS:
        problem = f"its description exceeds {MAX_DESCRIPTION_CHARS} characters"
        return ReportedTool(name, tool_name, description[:MAX_DESCRIPTION_CHARS], problem=problem)
    if _is_task_only(item.get("execution")):
        problem = "it runs only as a task, which is not supported"
        return ReportedTool(name, tool_name, description, problem=problem)
    if "inputSchema" not in item:
        return ReportedTool(name, tool_name, description, problem="it has no inputSchema")
    try:
        return ReportedTool(name, tool_name, description, usable_schema(item["inputSchema"]))
    except UnusableSchemaError as error:
        return ReportedTool(name, tool_name, description, problem=f"its inputSchema {error}"[:500])


def _is_task_only(execution: Any) -> bool:
    """Returns whether the server refuses plain calls of a tool ("execution.taskSupport")."""
    return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"


def usable_schema(schema: Any) -> dict[str, Any]:
    """Returns a schema that models and our validator can use.

    Raises:
        UnusableSchemaError: The schema cannot be converted without changing its meaning.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False)
        if len(text) > MAX_CHARS:
            raise UnusableSchemaError(f"exceeds {MAX_CHARS} characters")
        # All texts are checked before parts of the schema are removed.
        unclean = unstorable(schema)
        if unclean:
            raise UnusableSchemaError(unclean)
        return read_schema(json.dumps(_without_keywords(schema, 0), ensure_ascii=False))
    except (RecursionError, ValueError, TypeError):
        raise UnusableSchemaError("is nested too deeply or is not JSON") from None


def _without_keywords(schema: Any, depth: int) -> Any:
    """Returns a schema without the removed keywords; property names are not keywords."""
    if not isinstance(schema, dict):
        return schema
    if depth > _DEEPEST:
        raise UnusableSchemaError("is nested too deeply")
    remaining = _in_current_draft(
        {
            key: value
            for key, value in schema.items()
            if key not in _REMOVED_KEYWORDS
            and not (value is None and key in _NEVER_NULL)
            # Some providers refuse every request with an empty list of values.
            and not (key == "enum" and value == [])
        }
    )
    if schema.get("patternProperties"):
        # Otherwise the members whose names match a pattern would be refused.
        remaining["additionalProperties"] = True
    for key in _MAPS:
        if isinstance(remaining.get(key), dict):
            remaining[key] = {
                name: _without_keywords(part, depth + 1) for name, part in remaining[key].items()
            }
    for key in _LISTS:
        if isinstance(remaining.get(key), list):
            remaining[key] = [_without_keywords(part, depth + 1) for part in remaining[key]]
    for key in _SINGLE:
        if key in remaining:
            remaining[key] = _without_keywords(remaining[key], depth + 1)
    return remaining


def _in_current_draft(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema whose keywords of older drafts are replaced by those of 2020-12.

    The generator that most servers in TypeScript use writes draft 7: a tuple has a list of
    schemas as its "items". In draft 4 an exclusive bound is a boolean beside the bound.
    """
    current = dict(schema)
    if isinstance(current.get("items"), list):
        members, further = current.pop("items"), current.pop("additionalItems", None)
        if members:
            current["prefixItems"] = members
        if further is not None:
            current["items"] = further
    for bound, exclusive in _BOUNDS:
        is_exclusive = current.get(exclusive)
        if not isinstance(is_exclusive, bool):
            continue
        del current[exclusive]
        if is_exclusive and bound in current:
            current[exclusive] = current.pop(bound)
    return current
