"""Helpers for ``ToolService``: names of effects, and conversion of arguments and returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from strata.api.common.v1 import tool_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.protocol.errors import FieldViolation, InvalidArgumentError

Effect = Literal["read-only", "idempotent", "side-effect", ""]

EFFECTS: Mapping[str, tool_pb2.ToolEffect.ValueType] = {
    "read-only": tool_pb2.TOOL_EFFECT_READ_ONLY,
    "idempotent": tool_pb2.TOOL_EFFECT_IDEMPOTENT,
    "side-effect": tool_pb2.TOOL_EFFECT_SIDE_EFFECT,
    "": tool_pb2.TOOL_EFFECT_UNSPECIFIED,
}


def effect_of(word: str) -> tool_pb2.ToolEffect.ValueType:
    """Returns the effect with a name; an empty name means unspecified.

    Raises:
        InvalidArgumentError: There is no such effect.
    """
    if word not in EFFECTS:
        raise wrong_argument("effect", "must be read-only, idempotent or side-effect")
    return EFFECTS[word]


def arguments_json(arguments: Mapping[str, Any] | None) -> str:
    """Returns arguments as JSON for ``RunTool``.

    Raises:
        InvalidArgumentError: They cannot be represented in JSON.
    """
    try:
        return json.dumps(dict(arguments or {}), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise wrong_argument("arguments", f"are not valid JSON: {error}") from None


def returned(ran: pb.RunToolResponse) -> Any:
    """Returns the return value of a tool, or the text of its error.

    Lists and dicts are returned as such, everything else as text. ``ran.tool_return.status`` shows
    whether the tool failed.
    """
    return json.loads(ran.tool_return.content)["message"]


def wrong_argument(field: str, description: str) -> InvalidArgumentError:
    """Returns the error for an invalid argument, before anything is sent."""
    return InvalidArgumentError(
        f"{field} {description}.", violations=[FieldViolation(field, description)]
    )
