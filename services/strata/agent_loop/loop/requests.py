"""From the stored window to the request that the model gets.

A window that does not fit is compacted before the model is called; this is the floor beneath, for
what compaction cannot take out or may not: then older exchanges are left out of the request, and
at the very end long texts are cut in it. Nothing leaves the window or the store by that, and calls
always stay together with their returns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from strata.agent_loop.domain.messages import (
    ImagePart,
    Message,
    MessageRole,
    SummaryPart,
    ToolReturn,
)
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.exchanges import Unit, leaving, units_of
from strata.agent_loop.loop.packaging import cut_return, pack_summary
from strata.agent_loop.models.domain import (
    ChatMessage,
    ModelRequest,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCall,
    ToolChoice,
)
from strata.agent_loop.models.tokens import messages_bytes, tools_bytes

MIN_PIECE_BYTES = 160
"""What is shown of each text at least, however small the window."""

_SHRINK = 0.8
_MARK = "... [truncated {} chars]"
_SIMPLE_ROLES = {
    MessageRole.SYSTEM: Role.SYSTEM,
    MessageRole.USER: Role.USER,
    MessageRole.ASSISTANT: Role.ASSISTANT,
    MessageRole.SUMMARY: Role.USER,
}


@dataclass(frozen=True, slots=True)
class View:
    """How stored messages are shown.

    Attributes:
        return_limit: Characters shown of one tool return.
        timezone: The agent's; times in packed messages are in it.
    """

    return_limit: int
    timezone: str = "UTC"

    def chat(self, message: Message) -> list[ChatMessage]:
        """Returns what the model sees of a message; a tool message gives one per return."""
        if message.role is MessageRole.TOOL:
            return [
                ChatMessage.tool(part.tool_call_id, cut_return(part.content, self.return_limit))
                for part in message.parts
                if isinstance(part, ToolReturn)
            ]
        role = _SIMPLE_ROLES.get(message.role)
        if role is None:
            return []
        content = self._content(message)
        shown = content or message.tool_calls
        return [ChatMessage(role, content, message.tool_calls)] if shown else []

    def chats(self, messages: Iterable[Message]) -> list[ChatMessage]:
        """Returns what the model sees of messages."""
        return [chat for message in messages for chat in self.chat(message)]

    def size(self, messages: Iterable[Message]) -> int:
        """Returns the bytes of what the model sees of messages."""
        return messages_bytes(self.chats(messages))

    def _content(self, message: Message) -> tuple[Part, ...]:
        content: list[Part] = []
        for part in message.parts:
            if isinstance(part, TextPart | ReasoningPart):
                content.append(part)
            elif isinstance(part, SummaryPart):
                packed = pack_summary(part.text, message.create_time, self.timezone)
                content.append(TextPart(packed))
            elif isinstance(part, ImagePart):
                content.append(TextPart(f"[image: {part.media_type or 'unknown type'}, not shown]"))
        if message.role is MessageRole.USER and message.name and content:
            content.insert(0, TextPart(f"{message.name}: "))
        return tuple(content)


@dataclass(frozen=True, slots=True)
class Offer:
    """What the model may call.

    Attributes:
        tools: The tools that it is offered.
        choice: Which calls it may or must make.
        parallel: Whether it may make several at once; None as the agent's settings say.
    """

    tools: ToolSet
    choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool | None = None


@dataclass(frozen=True, slots=True)
class FittedRequest:
    """A request, and what it does not show.

    Attributes:
        request: The request.
        size: Its bytes.
        whole_size: Bytes of a request that shows everything.
        left_out: Messages of the window that it does not show.
    """

    request: ModelRequest
    size: int
    whole_size: int
    left_out: int


def build_request(
    messages: Sequence[Message], offer: Offer, view: View, *, max_bytes: float
) -> FittedRequest:
    """Builds the request for a window.

    The newest message of the user, the newest step and what is pinned are always in it. Where
    even they do not fit, long texts are cut, the longest first, down to `MIN_PIECE_BYTES` each.

    Args:
        messages: The window, the system message first.
        offer: What the model is offered.
        view: How messages are shown.
        max_bytes: Bytes that the whole request should keep within.
    """
    system = view.chat(messages[0])
    fixed = messages_bytes(system) + tools_bytes(offer.tools.schemas)
    units = units_of(messages[1:])
    chats = [view.chats(unit.messages) for unit in units]
    sizes = [messages_bytes(chat) for chat in chats]
    gone = _too_much(units, sizes, max_bytes - fixed)
    shown = [chat for i, unit in enumerate(chats) if i not in gone for chat in unit]
    size = sum(sizes) - sum(sizes[i] for i in gone)
    if size > max_bytes - fixed:
        shown = _cut_texts(shown, max_bytes - fixed)
        size = messages_bytes(shown)
    return FittedRequest(
        ModelRequest(
            [*system, *shown],
            tuple(offer.tools.schemas),
            tool_choice=offer.choice,
            parallel_tool_calls=offer.parallel,
        ),
        fixed + size,
        fixed + sum(sizes),
        left_out=sum(len(units[i].messages) for i in gone),
    )


def _too_much(units: Sequence[Unit], sizes: Sequence[int], budget: float) -> set[int]:
    gone: set[int] = set()
    size = sum(sizes)
    order = leaving(units)
    for group in (*order.exchanges, *order.current):
        if size <= budget:
            break
        gone.update(group)
        size -= sum(sizes[i] for i in group)
    return gone


def _cut_texts(chats: Sequence[ChatMessage], budget: float) -> list[ChatMessage]:
    """Cuts the longest texts until all fit; reasoning goes first, whole, since it is signed."""
    bare = [_without_reasoning(chat) for chat in chats]
    cap = float(max((size for chat in bare for size in _piece_sizes(chat)), default=0))
    cut = bare
    while messages_bytes(cut) > budget and cap > MIN_PIECE_BYTES:
        cap = max(cap * _SHRINK, MIN_PIECE_BYTES)
        cut = [_capped(chat, int(cap)) for chat in bare]
    return cut


def _without_reasoning(chat: ChatMessage) -> ChatMessage:
    kept = tuple(part for part in chat.content if not isinstance(part, ReasoningPart))
    return replace(chat, content=kept) if kept or chat.tool_calls else chat


def _piece_sizes(chat: ChatMessage) -> list[int]:
    texts = [part.text for part in chat.content]
    return [len(text.encode("utf-8", "replace")) for text in texts] + [
        len(call.arguments.encode("utf-8", "replace")) for call in chat.tool_calls
    ]


def _capped(chat: ChatMessage, cap: int) -> ChatMessage:
    content = tuple(_capped_part(part, cap, chat.role is Role.TOOL) for part in chat.content)
    return replace(
        chat, content=content, tool_calls=tuple(_capped_call(c, cap) for c in chat.tool_calls)
    )


def _capped_part(part: Part, cap: int, is_return: bool) -> Part:
    size = len(part.text.encode("utf-8", "replace"))
    if size <= cap or isinstance(part, ReasoningPart):
        return part
    if is_return:
        # Characters take up to four bytes each.
        return TextPart(cut_return(part.text, max(1, cap * len(part.text) // size - len(_MARK))))
    return TextPart(_cut(part.text, cap))


def _capped_call(call: ToolCall, cap: int) -> ToolCall:
    if len(call.arguments.encode("utf-8", "replace")) <= cap:
        return call
    # What goes out must be a JSON object; half of one is none.
    told = {"truncated": _cut(call.arguments, max(1, cap // 2))}
    return replace(call, arguments=json.dumps(told, ensure_ascii=False))


def _cut(text: str, size: int) -> str:
    """Cuts a text to about so many bytes and says how much is missing."""
    kept = text.encode("utf-8", "replace")[: max(0, size - len(_MARK) - 4)]
    start = kept.decode("utf-8", "ignore")
    return start + _MARK.format(len(text) - len(start))
