"""Decides which tools of a server can be used, and what they are called here.

What a server says is a stranger's text that reaches a model. Each tool is judged alone, so that
an odd one keeps none of the others away.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from strata.shared.json_schemas import MAX_CHARS, GivenSchemaError, read_schema, unstorable
from strata.tool_execution.domain.mcp import ReportedTool
from strata.tool_execution.domain.registry import MAX_NAME
from strata.tool_execution.schema.derive import MAX_DESCRIPTION_CHARS

MAX_REMOTE_NAME = 200
_SEPARATOR = "__"
_UNFIT = re.compile(r"[^A-Za-z0-9_\-]")
_MAPS = ("properties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
# They only narrow what is right or name the schema: the server checks its arguments itself, while
# our checker could be kept busy for years with a pattern.
_LEFT_OUT = frozenset(
    {
        *("$id", "$schema", "$comment", "pattern", "patternProperties", "propertyNames"),
        *("unevaluatedProperties", "unevaluatedItems"),
    }
)
_DEEPEST = 64


def judge(server: str, listed: Sequence[Any]) -> list[ReportedTool]:
    """Returns what a server reports, each tool with what is wrong with it.

    Args:
        server: Name of the server.
        listed: Tools as they came, of any form. What has no name is left out.
    """
    found: dict[str, ReportedTool] = {}
    taken: set[str] = set()
    for item in listed:
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str) or not _nameable(name):
            continue
        if name in found:
            found[name] = ReportedTool(name, found[name].tool_name, problem="it is listed twice")
            continue
        tool_name = registry_name(server, name)
        if tool_name in taken:
            found[name] = ReportedTool(
                name, tool_name, problem="its name is like that of another tool"
            )
            continue
        taken.add(tool_name)
        found[name] = _judged(name, tool_name, item)
    return list(found.values())


def registry_name(server: str, name: str) -> str:
    """Returns ``server__tool``; what does not fit is replaced or cut, and made unique by a hash."""
    whole = f"{server}{_SEPARATOR}{name}"
    fit = _UNFIT.sub("_", whole)
    if fit == whole and len(whole) <= MAX_NAME:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{fit[: MAX_NAME - len(digest) - 1]}_{digest}"


def _nameable(name: str) -> bool:
    return 0 < len(name) <= MAX_REMOTE_NAME and name.isprintable() and not unstorable(name)


def _judged(name: str, tool_name: str, item: Mapping[str, Any]) -> ReportedTool:
    description = item.get("description") or item.get("title") or name
    if not isinstance(description, str) or unstorable(description):
        return ReportedTool(
            name, tool_name, problem="its description is no text that can be stored"
        )
    description = description.strip() or name
    if len(description) > MAX_DESCRIPTION_CHARS:
        problem = f"its description exceeds {MAX_DESCRIPTION_CHARS} characters"
        return ReportedTool(name, tool_name, description[:MAX_DESCRIPTION_CHARS], problem=problem)
    if _is_task_only(item.get("execution")):
        problem = "it runs as a task only, which is not supported"
        return ReportedTool(name, tool_name, description, problem=problem)
    if "inputSchema" not in item:
        return ReportedTool(name, tool_name, description, problem="it has no inputSchema")
    try:
        return ReportedTool(name, tool_name, description, usable_schema(item["inputSchema"]))
    except GivenSchemaError as error:
        return ReportedTool(name, tool_name, description, problem=f"its inputSchema {error}"[:500])


def _is_task_only(execution: Any) -> bool:
    """Whether a plain call of it is always refused (the protocol's "execution.taskSupport")."""
    return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"


def usable_schema(given: Any) -> dict[str, Any]:
    """Returns a schema that models and our checker can use.

    Raises:
        GivenSchemaError: There is none that means the same to a model.
    """
    try:
        text = json.dumps(given, ensure_ascii=False)
        if len(text) > MAX_CHARS:
            raise GivenSchemaError(f"exceeds {MAX_CHARS} characters")
        # What it says of its own text is checked before parts of it are left out.
        unclean = unstorable(given)
        if unclean:
            raise GivenSchemaError(unclean)
        return read_schema(json.dumps(_without(given, 0), ensure_ascii=False))
    except (RecursionError, ValueError, TypeError):
        raise GivenSchemaError("is nested too deeply, or is no JSON") from None


def _without(schema: Any, depth: int) -> Any:
    """A schema without what only narrows it; names of properties are no keywords."""
    if not isinstance(schema, dict):
        return schema
    if depth > _DEEPEST:
        raise GivenSchemaError("is nested too deeply")
    kept = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    for key in _MAPS:
        if isinstance(kept.get(key), dict):
            kept[key] = {name: _without(each, depth + 1) for name, each in kept[key].items()}
    for key in _LISTS:
        if isinstance(kept.get(key), list):
            kept[key] = [_without(each, depth + 1) for each in kept[key]]
    for key in _SINGLE:
        if key in kept:
            kept[key] = _without(kept[key], depth + 1)
    return kept
