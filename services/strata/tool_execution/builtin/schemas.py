"""Definitions of built-in tools."""

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
