"""From the stored window to the request that the model gets.

What does not fit is left out of the request, never out of the store: oldest exchanges first,
calls always together with their returns. Whole exchanges that were left out leave the window
with the step, so that the window, and with it the cost of a turn, does not grow with the age of
the conversation; they stay in recall memory and are found by search. This is the deterministic
floor under compaction, which summarises what it takes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.agent_loop.domain.messages import (
    ImagePart,
    Message,
    MessageRole,
    SummaryPart,
    ToolReturn,
)
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.packaging import cut_return
from strata.agent_loop.models.domain import (
    ChatMessage,
    ModelRequest,
    Part,
    ReasoningPart,
    Role,
    TextPart,
)
from strata.agent_loop.models.tokens import messages_bytes, tools_bytes

_KEPT_SHARE = 0.7
_SIMPLE_ROLES = {
    MessageRole.SYSTEM: Role.SYSTEM,
    MessageRole.USER: Role.USER,
    MessageRole.ASSISTANT: Role.ASSISTANT,
    MessageRole.SUMMARY: Role.USER,
}


@dataclass(frozen=True, slots=True)
class FittedRequest:
    """A request, and what had to be left out of it.

    Attributes:
        request: The request.
        size: Its bytes.
        left_out: Stored messages that it does not show.
        evictable: The oldest of these, whole exchanges: messages after the system message that
            the window can do without from now on.
        minimal: Nothing more can be left out.
    """

    request: ModelRequest
    size: int
    left_out: int
    evictable: int
    minimal: bool


def to_chat(message: Message, return_limit: int) -> list[ChatMessage]:
    """Returns what the model is shown of a stored message; a tool message gives one per return."""
    if message.role is MessageRole.TOOL:
        return [
            ChatMessage.tool(part.tool_call_id, cut_return(part.content, return_limit))
            for part in message.parts
            if isinstance(part, ToolReturn)
        ]
    role = _SIMPLE_ROLES.get(message.role)
    if role is None:
        return []
    content = _content(message)
    return [ChatMessage(role, content, message.tool_calls)] if content or message.tool_calls else []


def build_request(
    messages: Sequence[Message], tools: ToolSet, *, return_limit: int, max_bytes: float
) -> FittedRequest:
    """Builds the request for a window.

    Args:
        messages: The window, the system message first.
        tools: What the model is offered.
        return_limit: Characters shown of one tool return.
        max_bytes: Bytes that the whole request should keep within.
    """
    system = to_chat(messages[0], return_limit)
    units = _units(messages[1:], return_limit)
    fixed = messages_bytes(system) + tools_bytes(tools.schemas)
    start, kept = _fit(units, max_bytes - fixed)
    shown = [chat for unit in kept for chat in unit.chat]
    return FittedRequest(
        ModelRequest([*system, *shown], tuple(tools.schemas)),
        fixed + sum(unit.size for unit in kept),
        left_out=sum(unit.count for unit in units) - sum(unit.count for unit in kept),
        evictable=sum(unit.count for unit in units[:start]),
        minimal=len(_fit(units, 0)[1]) == len(kept),
    )


@dataclass(slots=True)
class _Unit:
    """Messages that are shown or left out together: an input, or a reply with its returns."""

    chat: list[ChatMessage]
    size: int
    count: int
    opens: bool
    """Whether an exchange can begin with it."""


def _units(messages: Sequence[Message], return_limit: int) -> list[_Unit]:
    units: list[_Unit] = []
    for message in messages:
        chat = to_chat(message, return_limit)
        size = messages_bytes(chat)
        if message.role is MessageRole.TOOL and units:
            units[-1].chat.extend(chat)
            units[-1].size += size
            units[-1].count += 1
        else:
            units.append(_Unit(chat, size, 1, message.role is not MessageRole.ASSISTANT))
    return units


def _fit(units: Sequence[_Unit], budget: float) -> tuple[int, list[_Unit]]:
    """Leaves out the oldest exchanges, then the oldest steps of the newest exchange.

    Returns how many of the oldest units are left out, and what is kept. The newest input and
    the newest unit always stay. Once something has to go, more goes than must: if every turn
    left out a little, every prompt would begin differently and no provider's prompt cache
    would ever hold.
    """
    newest = max((i for i, unit in enumerate(units) if unit.opens), default=len(units) - 1)
    size = sum(unit.size for unit in units)
    roomy = budget * _KEPT_SHARE if size > budget else budget
    start = 0
    while size > roomy and start < newest:
        size -= units[start].size
        start += 1
        while start < newest and not units[start].opens:
            size -= units[start].size
            start += 1
    kept = list(units[start:])
    position = newest - start + 1
    while size > budget and position < len(kept) - 1:
        size -= kept.pop(position).size
    return start, kept


def _content(message: Message) -> tuple[Part, ...]:
    content: list[Part] = []
    for part in message.parts:
        if isinstance(part, TextPart | ReasoningPart):
            content.append(part)
        elif isinstance(part, SummaryPart):
            content.append(TextPart(part.text))
        elif isinstance(part, ImagePart):
            content.append(TextPart(f"[image: {part.media_type or 'unknown type'}, not shown]"))
    if message.role is MessageRole.USER and message.name and content:
        content.insert(0, TextPart(f"{message.name}: "))
    return tuple(content)
