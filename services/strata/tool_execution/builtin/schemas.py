"""Definitions of built-in tools, and pieces of their JSON schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strata.shared.tool_catalogue import CATALOGUE
from strata.tool_execution.domain.tools import Tool, ToolType


def builtin(
    name: str,
    description: str,
    kind: ToolType,
    parameters: Mapping[str, Any],
    *,
    from_web: bool = False,
    explain: Callable[[Mapping[str, Any]], str | None] | None = None,
) -> Tool:
    """Returns a built-in tool; its effect and whether it is parallel are the catalogue's.

    Raises:
        KeyError: The catalogue does not have it.
    """
    entry = CATALOGUE[name]
    return Tool(
        name,
        description,
        kind,
        parameters,
        entry.effect,
        entry.parallel,
        from_web=from_web,
        explain=explain,
    )


def parameters(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a tool's arguments, an object with these members and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def text(description: str) -> dict[str, Any]:
    """Returns the schema of a string."""
    return {"type": "string", "description": description}


def date(description: str) -> dict[str, Any]:
    """Returns the schema of a date or time; an empty one is not valid, and so counts as absent."""
    return {"type": "string", "pattern": r"\S", "description": description}


def integer(description: str, **bounds: int) -> dict[str, Any]:
    """Returns the schema of a whole number."""
    return {"type": "integer", **bounds, "description": description}


def texts(description: str) -> dict[str, Any]:
    """Returns the schema of a list of strings."""
    return {"type": "array", "items": {"type": "string"}, "description": description}
