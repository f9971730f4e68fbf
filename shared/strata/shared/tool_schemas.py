"""Pieces of the JSON schemas of tools."""

from __future__ import annotations

from typing import Any


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
