"""The calls of a run so far, read from its messages: nothing of them lives only in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from strata.agent_loop.domain.messages import Message, Provenance, ToolReturn, ToolStatus
from strata.agent_loop.rules.refusals import is_refusal
from strata.shared.json_text import PACKED_JSON_DEPTH, JsonTextError, parse_json


@dataclass(frozen=True, slots=True)
class Called:
    """A call that was run.

    Attributes:
        name: The tool.
        output: What it returned, a JSON value.
    """

    name: str
    output: Any = None


def calls_of(messages: Iterable[Message]) -> list[Called]:
    """Returns the calls that messages tell of, each once, in the order of the replies."""
    return [
        call
        for message in messages
        for tool_return in message.tool_returns
        for call in made_by(tool_return)
    ]


def made_by(tool_return: ToolReturn) -> list[Called]:
    """Returns the calls that a return tells of: the one that it answers, then those of its code.

    What a nested call returned is not known any more; no rule that looks at it lets a tool be
    called from code.
    """
    if not was_run(tool_return):
        return []
    nested = (Called(call.name) for call in tool_return.nested if not call.refused)
    return [called_by(tool_return), *nested]


def was_run(tool_return: ToolReturn) -> bool:
    """Says whether a tool was called, or may have been.

    What was refused never came to a tool. A lost outcome counts: the call may have had its effect.
    """
    refused = (
        tool_return.provenance is Provenance.SYSTEM and tool_return.status is ToolStatus.FAILED
    )
    return not (refused and is_refusal(called_by(tool_return).output))


def called_by(tool_return: ToolReturn) -> Called:
    """Returns the call that a return answers.

    The model is shown a return packed as JSON (docs/wire-format.md#tool-returns); a rule looks at
    the value in it.
    """
    try:
        body = parse_json(tool_return.content, max_depth=PACKED_JSON_DEPTH)
    except JsonTextError:
        return Called(tool_return.name, tool_return.content)
    packed = isinstance(body, dict) and "status" in body and "message" in body
    return Called(tool_return.name, body["message"] if packed else body)
