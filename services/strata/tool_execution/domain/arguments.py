"""Parses and validates the JSON arguments that a model wrote for a tool call."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from strata.shared.bounded_validator import TooCostlyError
from strata.shared.tool_arguments import STEPS_ON_EVENT_LOOP, ArgumentsError, fit_arguments
from strata.tool_execution.domain.tools import Tool, ToolError

# Built-in tools pass integers to 32-bit proto fields; custom tools get their arguments as JSON.
_INT32 = range(-(2**31), 2**31)
_LONG_CHARS = 10_000
"""Arguments from this length on are checked on a thread: that may take seconds."""


async def read_arguments(tool: Tool, text: str) -> dict[str, Any]:
    """Returns the arguments of a call, as `parse_arguments`, without blocking the event loop."""
    if len(text) < _LONG_CHARS:
        # A check that takes longer is begun again on a thread.
        with suppress(TooCostlyError):
            return parse_arguments(tool, text, most_steps=STEPS_ON_EVENT_LOOP)
    return await asyncio.to_thread(parse_arguments, tool, text)


def parse_arguments(tool: Tool, text: str, *, most_steps: int | None = None) -> dict[str, Any]:
    """Returns the arguments of a call; see `fit_arguments`.

    Raises:
        ToolError: The text is not a JSON object or violates the schema; the message says what to
            change.
        TooCostlyError: The check takes more than `most_steps`.
    """
    integers = _INT32 if tool.own is None else None
    try:
        return fit_arguments(
            tool.name,
            tool.parameters,
            text,
            integers=integers,
            explain=tool.explain,
            most_steps=most_steps,
        )
    except ArgumentsError as error:
        raise ToolError(str(error)) from None
