"""Spans of tool calls, by OpenTelemetry's semantic conventions for generative AI.

They hold names and numbers, neither the arguments of a call nor what it returned.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from strata.shared.messages import ToolStatus
from strata.shared.tracing.nested import nested_span
from strata.shared.tracing.spans import Span
from strata.tool_execution.domain.tools import CallOutcome, Tool

_OPERATION = "execute_tool"
_UNKNOWN = "unknown"


def type_label(tool: Tool | None) -> str:
    """Returns the type of a tool; ``unknown`` for a tool that does not exist."""
    # A model can call a tool that does not exist.
    return _UNKNOWN if tool is None else tool.type.value


def tool_span(tool: Tool | None) -> AbstractContextManager[Span | None]:
    """Records the block, which runs a call, as a span.

    Args:
        tool: The tool; None if there is none of the name that the model wrote.
    """
    # A name that the model invented could be any text.
    name = _UNKNOWN if tool is None else tool.name
    return nested_span(
        f"{_OPERATION} {name}",
        {
            "gen_ai.operation.name": _OPERATION,
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "strata.tool.type": type_label(tool),
        },
    )


def note_outcome(span: Span, outcome: CallOutcome) -> None:
    """Adds how a call ended."""
    span.attributes["gen_ai.tool.call.id"] = outcome.call.id
    span.attributes["strata.tool.status"] = outcome.status.value
    span.attributes["strata.tool.return_characters"] = len(outcome.content)
    if outcome.status is not ToolStatus.OK:
        span.fail(outcome.status.value)
