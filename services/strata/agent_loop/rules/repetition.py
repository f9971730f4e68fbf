"""Detects that a run repeats itself: the same calls with the same arguments and results.

Steps are read from stored messages, so that a process that takes over the run counts the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strata.agent_loop.domain.conversation.messages import Message, ToolReturn
from strata.agent_loop.rules.history import called_by
from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.messages import MessageRole

REPETITIONS_NOTED = 3
"""Equal steps in a row after which the model gets a note."""
REPETITIONS_ENDED = 5
"""Equal steps in a row after which the run ends."""
LONGEST_CYCLE = 3
"""Steps of the longest cycle that is detected: A, B, C, A, B, C, …"""


@dataclass(frozen=True, slots=True)
class CallWithResult:
    """One call and its result, without id and time, which always differ."""

    name: str
    arguments: str
    status: str
    output: str
    images: tuple[str, ...]


StepTrace: TypeAlias = tuple[CallWithResult, ...]
"""The exchanges of one step, in order; empty for a reply without calls."""


def traces_of(messages: Iterable[Message]) -> list[StepTrace]:
    """Returns the trace of each step in the messages, in order."""
    traces: list[StepTrace] = []
    arguments: dict[str, str] = {}
    for message in messages:
        arguments.update({call.id: call.arguments for call in message.tool_calls})
        if message.role is MessageRole.TOOL:
            traces.append(tuple(_exchange(part, arguments) for part in message.tool_returns))
        elif message.role is MessageRole.ASSISTANT and not message.tool_calls:
            traces.append(())
    return traces


def repetitions(traces: Sequence[object]) -> int:
    """Returns how often the last step or cycle of steps occurred in a row; 1 if it is new.

    Cycles have up to `LONGEST_CYCLE` steps.
    """
    return max((_repeats(traces, length) for length in range(1, LONGEST_CYCLE + 1)), default=0)


def _repeats(traces: Sequence[object], length: int) -> int:
    cycle = traces[len(traces) - length :] if length <= len(traces) else ()
    count, end = 0, len(traces)
    while cycle and end >= length and traces[end - length : end] == cycle:
        count, end = count + 1, end - length
    return count


def _exchange(part: ToolReturn, arguments: dict[str, str]) -> CallWithResult:
    output = called_by(part).output
    text = output if isinstance(output, str) else json.dumps(output, sort_keys=True)
    return CallWithResult(
        part.name,
        _canonical(arguments.get(part.tool_call_id, "")),
        part.status.value,
        text,
        tuple(image.image_id for image in part.images),
    )


def _canonical(arguments: str) -> str:
    """Returns arguments in a form that does not depend on order and spacing."""
    try:
        return json.dumps(parse_json(arguments or "{}"), sort_keys=True)
    except JsonTextError:
        return arguments
