"""Derives the call history of a run from its stored messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from strata.agent_loop.domain.conversation.messages import Message, ToolReturn
from strata.agent_loop.rules.refusals import is_refusal
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.tool_returns import unpacked


@dataclass(frozen=True, slots=True)
class Called:
    """A call that was run.

    Attributes:
        name: Name of the tool.
        output: The returned JSON value.
    """

    name: str
    output: Any = None


def calls_of(messages: Iterable[Message]) -> list[Called]:
    """Returns the calls that have returns in the messages, in the order of the replies."""
    return [
        call
        for message in messages
        for tool_return in message.tool_returns
        for call in made_by(tool_return)
    ]


def made_by(tool_return: ToolReturn) -> list[Called]:
    """Returns the calls recorded in a return: the answered call, then the calls of its code.

    The outputs of nested calls are not stored. No rule needs them: tools whose output matters to a
    rule cannot be called from code.
    """
    if not was_run(tool_return):
        return []
    nested = (Called(call.name) for call in tool_return.nested if not call.refused)
    return [called_by(tool_return), *nested]


def was_run(tool_return: ToolReturn) -> bool:
    """Returns whether a tool was called, or may have been.

    Refused calls never reached the tool. An unknown outcome counts as called.
    """
    refused = (
        tool_return.provenance is Provenance.SYSTEM and tool_return.status is ToolStatus.FAILED
    )
    return not (refused and is_refusal(called_by(tool_return).output))


def called_by(tool_return: ToolReturn) -> Called:
    """Returns the call that a return answers.

    Returns are packed as JSON for the model (docs/wire-format.md#tool-returns); the output is the
    value in it.
    """
    return Called(tool_return.name, unpacked(tool_return.content))
