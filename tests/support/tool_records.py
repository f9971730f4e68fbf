"""Custom tools for the tool store."""

from __future__ import annotations

from typing import Any

from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.tool_execution.domain.tools import Effect, OwnDefinition, Tool, ToolType

NOTHING = RequestKey()


def custom(name: str = "weather", **own: Any) -> Tool:
    return Tool(
        name=name,
        description="Tells the weather.",
        type=ToolType.CUSTOM,
        parameters={
            "type": "object",
            "properties": {"town": {"type": "string"}, "day": {"type": "integer", "default": 1}},
            "required": ["town"],
            "additionalProperties": False,
        },
        effect=Effect.READ_ONLY,
        parallel=True,
        return_char_limit=900,
        tags=("outside", "sky"),
        own=OwnDefinition(
            id=new_id("tool"),
            source_code=f"def {name}(town: str, day: int = 1) -> str: ...",
            function=name,
            **own,
        ),
    )
