"""Builds the model request for a stored window (docs/wire-format.md#messages).

A window that does not fit is compacted before the model is called. If it is still too large, this
module shortens the request: it leaves out older exchanges, then truncates long texts. The stored
window does not change, and calls always stay together with their returns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from strata.agent_loop.context.added_arguments import ArgumentsStream, CallForm
from strata.agent_loop.context.exchanges import WindowUnit, leaving, units_of
from strata.agent_loop.context.packaging import (
    cut_return,
    pack_summary,
    pack_user_message,
    return_limit,
)
from strata.agent_loop.domain.agent.agents import Agent, MessagePackaging
from strata.agent_loop.domain.agent.types import AGENT_TYPES, LoopKind
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart, ToolReturn
from strata.agent_loop.domain.model.chat import (
    DEFAULT_ENDPOINT_TYPE,
    ChatMessage,
    ChatRole,
    EndpointType,
    ImagePart,
    JsonReply,
    ModelRequest,
    ModelSettings,
    PromptPart,
    ReasoningPart,
    ShownImage,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSchema,
)
from strata.agent_loop.domain.model.proofs import is_thought
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.models.image_tokens import shown
from strata.agent_loop.models.tokens import messages_bytes, tools_bytes
from strata.protocol.images import MAX_IMAGES, MAX_IMAGES_BYTES
from strata.shared.messages import MessageRole
from strata.shared.one_line import one_line

MIN_PIECE_BYTES = 160
"""UTF-8 bytes of each text that are shown even in the smallest window."""

BLIND_MODEL = "this model is not shown images"
TOO_MANY_IMAGES = "newer images have taken its place"
NO_SPACE_FOR_IMAGE = "it does not fit into the context window"

_SHRINK = 0.8
# Views that are recognized as the same object; further ones only cost comparisons.
_MOST_VIEWS = 1024
_MARK = "... [truncated {} chars]"
_SIMPLE_ROLES = {
    MessageRole.SYSTEM: ChatRole.SYSTEM,
    MessageRole.USER: ChatRole.USER,
    MessageRole.ASSISTANT: ChatRole.ASSISTANT,
    MessageRole.SUMMARY: ChatRole.USER,
}


@dataclass(frozen=True, slots=True)
class View:
    """How stored messages are shown.

    Attributes:
        return_limit: Characters shown of one tool return.
        timezone: Time zone of the agent, for times in packed messages.
        endpoint_type: Determines the formula for the tokens of an image.
        without_images: Reason why images are replaced by texts; empty to show them.
        packaging: How messages of the user are packed.
        model: Handle of the model. Reasoning of other models is left out, since the provider would
            refuse its signature. Empty shows all reasoning.
        form: How calls are shown; None for their stored form.
    """

    return_limit: int
    timezone: str = "UTC"
    endpoint_type: EndpointType = DEFAULT_ENDPOINT_TYPE
    without_images: str = ""
    packaging: MessagePackaging = field(default_factory=MessagePackaging)
    model: str = ""
    form: CallForm | None = None

    def chat(self, message: Message) -> tuple[ChatMessage, ...]:
        """Returns a message as the model sees it; a tool message gives one per return."""
        return message.derived(_chat, self)

    def _chat(self, message: Message) -> tuple[ChatMessage, ...]:
        if message.role is MessageRole.TOOL:
            return tuple(
                ChatMessage(
                    ChatRole.TOOL,
                    (
                        TextPart(cut_return(part.content, self.return_limit)),
                        *map(self._image, part.images),
                    ),
                    tool_call_id=part.tool_call_id,
                )
                for part in message.parts
                if isinstance(part, ToolReturn)
            )
        role = _SIMPLE_ROLES.get(message.role)
        if role is None:
            return ()
        content = self._content(message)
        # A user message is kept even if it is empty.
        if not (content or message.tool_calls or role is ChatRole.USER):
            return ()
        calls = message.tool_calls
        if self.form is not None:
            content, calls = self.form.shown(content, calls)
        return (ChatMessage(role, content, calls),)

    def chats(self, messages: Iterable[Message]) -> list[ChatMessage]:
        """Returns messages in the form that the model sees."""
        shown: list[ChatMessage] = []
        for message in messages:
            shown += message.derived(_chat, self)
        return shown

    def chats_of_request(self, groups: Iterable[Iterable[Message]]) -> list[list[ChatMessage]]:
        """Returns the messages of one request, by group: only the newest images are shown."""
        return _newest_images([self.chats(messages) for messages in groups])

    def sizes(self, groups: Iterable[Iterable[Message]]) -> list[int]:
        """Returns the bytes of groups of messages in the form that they have in one request."""
        return [messages_bytes(chats) for chats in self.chats_of_request(groups)]

    def size(self, messages: Iterable[Message]) -> int:
        """Returns the bytes of messages in the form that they have in one request."""
        [size] = self.sizes([messages])
        return size

    def _is_thought(self, part: ReasoningPart) -> bool:
        """Returns whether reasoning is shown as an argument of calls, to any model."""
        return self.form is not None and self.form.thoughts and is_thought(part)

    def _is_of_another(self, message: Message) -> bool:
        """Returns whether another model wrote a message; False if its model is unknown."""
        return bool(self.model and message.model) and message.model != self.model

    def _image(self, image: ImagePart) -> PromptPart:
        if self.without_images:
            return image_note(image, self.without_images)
        return shown(self.endpoint_type, image)

    def _packed(self, message: Message) -> tuple[PromptPart, ...]:
        """Returns a message of the user as one packed text, and its images after it.

        The time is the message's, so that the same bytes are sent in every request.
        """
        text = pack_user_message(
            message.text,
            message.create_time,
            self.timezone,
            location=self.packaging.location,
            name=message.name,
        )
        images = (part for part in message.parts if isinstance(part, ImagePart))
        return (TextPart(text), *map(self._image, images))

    def _content(self, message: Message) -> tuple[PromptPart, ...]:
        # System messages with the user's role are stored in packed form.
        by_user = message.role is MessageRole.USER and not message.hidden
        if self.packaging.pack_user_messages and by_user and message.text:
            return self._packed(message)
        content: list[PromptPart] = []
        for part in message.parts:
            if isinstance(part, TextPart) or (
                isinstance(part, ReasoningPart)
                and (not self._is_of_another(message) or self._is_thought(part))
            ):
                content.append(part)
            elif isinstance(part, SummaryPart):
                packed = pack_summary(part.text, message.create_time, self.timezone)
                content.append(TextPart(packed))
            elif isinstance(part, ImagePart):
                content.append(self._image(part))
        if message.role is MessageRole.USER and message.name and content:
            content.insert(0, TextPart(f"{one_line(message.name)}: "))
        return tuple(content)


def view_of(settings: ModelSettings, agent: Agent, *, json_replies: bool = False) -> View:
    """Returns how messages of an agent are shown to a model.

    Args:
        settings: The model.
        agent: The agent.
        json_replies: Whether its replies must be JSON.
    """
    v2 = AGENT_TYPES[agent.type].loop is LoopKind.V2
    return _same(
        View(
            return_limit(settings.context_window),
            agent.timezone,
            settings.endpoint_type,
            "" if settings.images else BLIND_MODEL,
            agent.packaging,
            settings.handle,
            CallForm(agent.model.put_inner_thoughts_in_kwargs, json_replies) if v2 else None,
        )
    )


@lru_cache(maxsize=_MOST_VIEWS)
def _same(view: View) -> View:
    """Returns the same object for equal views: messages keep their form for it."""
    return view


def _chat(message: Message, view: View) -> tuple[ChatMessage, ...]:
    return view._chat(message)  # noqa: SLF001


def image_note(image: ImagePart, reason: str) -> TextPart:
    """Returns the text that replaces an image that is not shown."""
    size = f", {image.width} x {image.height} pixels" if image.width else ""
    alt_text = f" Description: {image.alt_text}" if image.alt_text else ""
    return TextPart(f"[Image omitted ({image.media_type or 'image'}{size}): {reason}.{alt_text}]")


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools and the reply format that a model request offers.

    Attributes:
        tools: The tools.
        choice: Which calls the model may or must make.
        parallel: Whether it may make several calls at once; None for the agent's setting.
        json_reply: The JSON form of replies to the user; None for any text.
        json_text: Whether the text of a reply is addressed to the user.
        stream: Returns a filter for the streamed arguments of a tool's call; None to stream them
            as the model writes them.
    """

    tools: ToolSet
    choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool | None = None
    json_reply: JsonReply | None = None
    json_text: bool = True
    stream: Callable[[str], ArgumentsStream] | None = None

    @property
    def response_format(self) -> JsonReply | None:
        """The JSON form of the text of a reply; None for any text."""
        return self.json_reply if self.json_text else None

    @property
    def schemas(self) -> Sequence[ToolSchema]:
        """All schemas in a request: the tools' parameters, and the response format."""
        reply = self.response_format
        if reply is None or reply.schema is None:
            return self.tools.schemas
        return [*self.tools.schemas, ToolSchema(reply.name, reply.description, reply.schema)]


@dataclass(frozen=True, slots=True)
class FittedRequest:
    """A request, and how much of the window it leaves out.

    Attributes:
        request: The request.
        size: Bytes of the request.
        whole_size: Bytes of a request with the whole window.
        left_out: Number of messages of the window that the request leaves out.
    """

    request: ModelRequest
    size: int
    whole_size: int
    left_out: int

    def continued(self, messages: Sequence[ChatMessage]) -> FittedRequest:
        """Returns the request with further messages at its end."""
        if not messages:
            return self
        more = messages_bytes(messages)
        request = replace(self.request, messages=[*self.request.messages, *messages])
        return replace(
            self, request=request, size=self.size + more, whole_size=self.whole_size + more
        )


def build_request(
    messages: Sequence[Message], offer: Offer, view: View, *, max_bytes: float
) -> FittedRequest:
    """Builds the request for a window.

    It always holds the newest user message, the newest step and pinned messages. If even these do
    not fit, the longest texts are truncated first, down to `MIN_PIECE_BYTES` each.

    Args:
        messages: The window, the system message first.
        offer: The tools and the reply format.
        view: How messages are shown.
        max_bytes: Maximum bytes of the request; it is larger if the smallest form does not fit.
    """
    system = view.chat(messages[0])
    fixed = messages_bytes(system) + tools_bytes(offer.schemas)
    units = units_of(messages[1:])
    chats = view.chats_of_request(unit.messages for unit in units)
    sizes = [messages_bytes(chat) for chat in chats]
    left_out = _too_much(units, sizes, max_bytes - fixed)
    shown = [chat for i, unit in enumerate(chats) if i not in left_out for chat in unit]
    size = sum(sizes) - sum(sizes[i] for i in left_out)
    if size > max_bytes - fixed:
        packed = (
            {ChatRole.TOOL, ChatRole.USER} if view.packaging.pack_user_messages else {ChatRole.TOOL}
        )
        shown = _cut_texts(shown, max_bytes - fixed, packed)
        size = messages_bytes(shown)
    return FittedRequest(
        ModelRequest(
            [*system, *shown],
            tuple(offer.tools.schemas),
            tool_choice=offer.choice,
            parallel_tool_calls=offer.parallel,
            response_format=offer.response_format,
        ),
        fixed + size,
        fixed + sum(sizes),
        left_out=sum(len(units[i].messages) for i in left_out),
    )


def _newest_images(chats: list[list[ChatMessage]]) -> list[list[ChatMessage]]:
    """Keeps the newest images, as many as providers accept in a request; replaces the others."""
    images = [part.image for unit in chats for chat in unit for part in chat.images]
    size = sum(image.size_bytes for image in images)
    if len(images) <= MAX_IMAGES and size <= MAX_IMAGES_BYTES:
        return chats
    total_bytes = count = 0
    for image in reversed(images):
        total_bytes += image.size_bytes
        if count == MAX_IMAGES or total_bytes > MAX_IMAGES_BYTES:
            break
        count += 1
    omit = iter([True] * (len(images) - count) + [False] * count)

    def limited(part: PromptPart) -> PromptPart:
        if isinstance(part, ShownImage) and next(omit):
            return image_note(part.image, TOO_MANY_IMAGES)
        return part

    return [
        [
            replace(chat, content=tuple(map(limited, chat.content))) if chat.images else chat
            for chat in unit
        ]
        for unit in chats
    ]


def _too_much(units: Sequence[WindowUnit], sizes: Sequence[int], budget: float) -> set[int]:
    left_out: set[int] = set()
    size = sum(sizes)
    if size <= budget:
        # Nearly always: then the order in which units would leave need not be found.
        return left_out
    order = leaving(units)
    for group in (*order.exchanges, *order.current):
        if size <= budget:
            break
        left_out.update(group)
        size -= sum(sizes[i] for i in group)
    return left_out


def _cut_texts(
    chats: Sequence[ChatMessage], budget: float, packed: Collection[ChatRole]
) -> list[ChatMessage]:
    """Truncates the longest texts until all fit.

    Before that, reasoning is removed as a whole, since it is signed, and then the oldest images.
    Texts of the `packed` roles are JSON and stay valid JSON.
    """
    text_chats = _without_images([_without_reasoning(chat) for chat in chats], budget)
    cap = float(max((size for chat in text_chats for size in _piece_sizes(chat)), default=0))
    capped = text_chats
    while messages_bytes(capped) > budget and cap > MIN_PIECE_BYTES:
        cap = max(cap * _SHRINK, MIN_PIECE_BYTES)
        capped = [_capped(chat, int(cap), packed) for chat in text_chats]
    return capped


def _without_images(chats: list[ChatMessage], budget: float) -> list[ChatMessage]:
    """Replaces the oldest images by a text while the chats are larger than the budget."""
    size = messages_bytes(chats)

    def fitting(part: PromptPart) -> PromptPart:
        nonlocal size
        if size <= budget or not isinstance(part, ShownImage):
            return part
        note = image_note(part.image, NO_SPACE_FOR_IMAGE)
        size += len(note.text.encode("utf-8", "replace")) - part.weight
        return note

    return [
        replace(chat, content=tuple(map(fitting, chat.content))) if chat.images else chat
        for chat in chats
    ]


def _without_reasoning(chat: ChatMessage) -> ChatMessage:
    other_parts = tuple(part for part in chat.content if not isinstance(part, ReasoningPart))
    return replace(chat, content=other_parts) if other_parts or chat.tool_calls else chat


def _piece_sizes(chat: ChatMessage) -> list[int]:
    texts = [part.text for part in chat.content if not isinstance(part, ShownImage)]
    return [len(text.encode("utf-8", "replace")) for text in texts] + [
        len(call.arguments.encode("utf-8", "replace")) for call in chat.tool_calls
    ]


def _capped(chat: ChatMessage, cap: int, packed: Collection[ChatRole]) -> ChatMessage:
    content = tuple(_capped_part(part, cap, chat.role in packed) for part in chat.content)
    return replace(
        chat, content=content, tool_calls=tuple(_capped_call(c, cap) for c in chat.tool_calls)
    )


def _capped_part(part: PromptPart, cap: int, is_packed: bool) -> PromptPart:
    if isinstance(part, ShownImage):
        return part
    size = len(part.text.encode("utf-8", "replace"))
    if size <= cap or isinstance(part, ReasoningPart):
        return part
    if is_packed:
        # Characters take up to four bytes each.
        return TextPart(cut_return(part.text, max(1, cap * len(part.text) // size - len(_MARK))))
    return TextPart(_cut(part.text, cap))


def _capped_call(call: ToolCall, cap: int) -> ToolCall:
    if len(call.arguments.encode("utf-8", "replace")) <= cap:
        return call
    # Providers require a JSON object as arguments, so the truncated text is wrapped in one.
    shortened = {"truncated": _cut(call.arguments, max(1, cap // 2))}
    return replace(call, arguments=json.dumps(shortened, ensure_ascii=False))


def _cut(text: str, size: int) -> str:
    """Truncates a text to about `size` bytes and notes how many characters are missing."""
    encoded_start = text.encode("utf-8", "replace")[: max(0, size - len(_MARK) - 4)]
    start = encoded_start.decode("utf-8", "ignore")
    return start + _MARK.format(len(text) - len(start))
