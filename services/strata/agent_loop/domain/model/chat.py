"""The provider-independent interface of chat models: requests in, a stream of events out.

No provider SDK is imported here. The loop depends only on `ChatModel`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self, TypeAlias

from strata.agent_loop.domain.model.derived import Derived
from strata.agent_loop.domain.model.quirks import NO_QUIRKS, Quirks
from strata.shared.blank_text import is_blank
from strata.shared.cached_property import CachedProperty
from strata.shared.text_bytes import text_bytes
from strata.shared.tool_size import tool_bytes
from strata.shared.usage import Usage

JsonSchema: TypeAlias = Mapping[str, Any]

DEFAULT_CONTEXT_WINDOW = 32_000
DEFAULT_TEMPERATURE = 0.7


class ChatRole(StrEnum):
    """The role of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of visible text.

    Attributes:
        text: The text.
        beside_call: Whether it is a thought beside a call that the model had to make.
    """

    text: str
    beside_call: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A piece of the model's reasoning, kept so that it can be sent back unchanged.

    Attributes:
        text: The visible part of the reasoning; may be empty.
        signature: The provider's proof of origin; see `domain.model.proofs`. A part with neither
            this nor `redacted` is never sent back.
        redacted: An opaque payload for reasoning that the provider hides.
    """

    text: str
    signature: str = ""
    redacted: str = ""


class ImageDetail(StrEnum):
    """The resolution in which a model sees an image."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image.

    Attributes:
        media_type: Such as ``image/png``.
        image_id: SHA-256 of its bytes; empty until the image is fetched.
        width: Width in pixels.
        height: Height in pixels.
        size_bytes: Number of bytes.
        alt_text: Text description; may be empty.
        detail: The resolution in which the model sees it.
        url: The URL it is fetched from; empty if its bytes were sent.
        data: The bytes; empty in stored messages.
    """

    media_type: str
    image_id: str = ""
    width: int = 0
    height: int = 0
    size_bytes: int = 0
    alt_text: str = ""
    detail: ImageDetail = ImageDetail.AUTO
    url: str = ""
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class ShownImage:
    """An image in a prompt.

    Attributes:
        image: The image; it has its bytes when the request is sent.
        weight: Bytes of text with the same number of tokens.
    """

    image: ImagePart
    weight: int


ReplyPart: TypeAlias = TextPart | ReasoningPart
PromptPart: TypeAlias = ReplyPart | ShownImage


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of the model.

    Attributes:
        id: Matches the call with its return.
        name: Name of the tool.
        arguments: The raw JSON text, valid or not.
        request_heartbeat: Whether the model requested a heartbeat (V2 loop); None if the tool has
            no such argument.
    """

    id: str
    name: str
    arguments: str
    request_heartbeat: bool | None = None


@dataclass(frozen=True)
class ChatMessage(Derived):
    """One message of the prompt.

    Attributes:
        role: The role.
        content: Text, reasoning and images, in the order in which they were produced. Only user
            messages and tool messages have images.
        tool_calls: Calls of an assistant message.
        tool_call_id: For a tool message, the id of the call that it answers.
    """

    role: ChatRole
    content: tuple[PromptPart, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @CachedProperty
    def text(self) -> str:
        """All visible text, joined."""
        return "".join([part.text for part in self.content if isinstance(part, TextPart)])

    @CachedProperty
    def images(self) -> tuple[ShownImage, ...]:
        """All images."""
        return tuple([part for part in self.content if isinstance(part, ShownImage)])

    @CachedProperty
    def size_bytes(self) -> int:
        """UTF-8 bytes of its texts, reasoning and calls, plus the weights of its images."""
        size = sum([_part_bytes(part) for part in self.content])
        for call in self.tool_calls:
            size += text_bytes(call.name) + text_bytes(call.arguments)
        return size

    @classmethod
    def system(cls, text: str) -> Self:
        """A system message."""
        return cls(ChatRole.SYSTEM, (TextPart(text),))

    @classmethod
    def user(cls, text: str) -> Self:
        """A user message."""
        return cls(ChatRole.USER, (TextPart(text),))

    @classmethod
    def assistant(cls, text: str = "", tool_calls: Sequence[ToolCall] = ()) -> Self:
        """An assistant message with text, tool calls, or both."""
        return cls(ChatRole.ASSISTANT, (TextPart(text),) if text else (), tuple(tool_calls))

    @classmethod
    def tool(cls, tool_call_id: str, text: str) -> Self:
        """The return of one tool call."""
        return cls(ChatRole.TOOL, (TextPart(text),), tool_call_id=tool_call_id)


@dataclass(frozen=True)
class ToolSchema(Derived):
    """A tool that is offered to the model.

    Attributes:
        name: The name under which the model calls it.
        description: The tool's description for the model.
        parameters: JSON schema of the arguments, of type "object".
        strict: Ask the provider to enforce the schema, where it can do so without forcing the
            model to invent values for optional parameters.
    """

    name: str
    description: str
    parameters: JsonSchema
    strict: bool = False

    @CachedProperty
    def size_bytes(self) -> int:
        """UTF-8 bytes of the tool as sent; cached, because a turn reads them several times."""
        return tool_bytes(self.name, self.description, self.parameters)


def _part_bytes(part: PromptPart) -> int:
    if isinstance(part, ShownImage):
        return part.weight
    if isinstance(part, ReasoningPart):
        return text_bytes(part.text) + text_bytes(part.redacted)
    return text_bytes(part.text)


class ToolChoiceMode(StrEnum):
    """Which calls the model may or must make."""

    AUTO = "auto"
    REQUIRED = "required"
    NONE = "none"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which calls the model may make. `name` is set for `NAMED` only."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    name: str | None = None

    @classmethod
    def required(cls) -> Self:
        """At least one call, of any offered tool."""
        return cls(ToolChoiceMode.REQUIRED)

    @classmethod
    def none(cls) -> Self:
        """Text only."""
        return cls(ToolChoiceMode.NONE)

    @classmethod
    def named(cls, name: str) -> Self:
        """A call of this tool."""
        return cls(ToolChoiceMode.NAMED, name)

    @property
    def forces_a_call(self) -> bool:
        """Whether a reply must have a call."""
        return self.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)


EndpointType: TypeAlias = str
"""The name of an endpoint's wire protocol, a key of `dialects.table.DIALECTS`."""

DEFAULT_ENDPOINT_TYPE: EndpointType = "openai"
"""The default wire protocol, which most servers support."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of one request, in seconds.

    Attributes:
        connect: For opening the connection.
        first_event: From sending the request to the first event of the stream. A local model
            reads the whole prompt before it writes anything, which can take minutes.
        total: From sending the request to the end of the stream.
    """

    connect: float = 10.0
    first_event: float = 60.0
    total: float = 600.0


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Everything needed to call one model.

    Attributes:
        handle: "endpoint/model", the name that users see.
        endpoint_type: The wire protocol.
        base_url: Root of the API; empty for the provider's own address.
        api_key: Empty for a server without keys.
        key_owner: Description of the key's owner, for error messages.
        model: The model's name at the endpoint.
        context_window: Prompt and reply together, in tokens.
        max_tokens: Limit of the reply in tokens; None for the provider's own limit.
        temperature: None leaves it out. Ignored if the API has no such parameter.
        parallel_tool_calls: Whether one reply may hold several calls.
        reasoning_effort: none, minimal, low, medium, high, xhigh or max; None leaves it out.
        max_reasoning_tokens: Thinking budget in tokens; 0 turns thinking off.
        structured_tools: Offer tools through the prompt and a JSON schema instead of the API's
            tool calling, for small local models.
        images: Whether the model is shown images; otherwise each is replaced by a text.
        timeouts: Limits in seconds.
        quirks: How the server deviates from its protocol.
        has_fallback: A fallback model exists, so failed requests are retried less often.
    """

    handle: str
    endpoint_type: EndpointType
    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    key_owner: str = ""
    context_window: int = DEFAULT_CONTEXT_WINDOW
    max_tokens: int | None = None
    temperature: float | None = DEFAULT_TEMPERATURE
    parallel_tool_calls: bool = False
    reasoning_effort: str | None = None
    max_reasoning_tokens: int = 0
    structured_tools: bool = False
    images: bool = True
    timeouts: Timeouts = field(default_factory=Timeouts)
    quirks: Quirks = NO_QUIRKS
    has_fallback: bool = False


@dataclass(frozen=True, slots=True)
class JsonReply:
    """Requests a reply whose text is a JSON object. The loop validates it in any case.

    Attributes:
        schema: Schema of the object, closed and without references; None for any object.
        name: Name of the schema.
        description: Purpose of the object.
        strict: Whether the provider is asked to enforce the schema.
    """

    schema: JsonSchema | None = None
    name: str = "reply"
    description: str = ""
    strict: bool = True


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of the model.

    Attributes:
        messages: The prompt, the system message first.
        tools: Offered tools, in a stable order: it is part of the provider's prompt cache key.
        tool_choice: Which calls the model may make.
        parallel_tool_calls: Overrides the setting of the model, for turns with tool rules.
        response_format: The JSON form of the reply's text; None for any text.
        max_tokens: Overrides the setting of the model.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[ToolSchema] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool | None = None
    response_format: JsonReply | None = None
    max_tokens: int | None = None


class FinishReason(StrEnum):
    """Why the model stopped. A refusal or a cut stream is a `ModelError` instead."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of shown reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call.

    Attributes:
        index: Position of the call in the reply, from 0.
        id: Id of the call, the same in every piece.
        name: Name of the tool as far as known; complete in the first piece with most servers.
        arguments: The next fragment of the raw JSON arguments.
    """

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """Tokens of this call, as soon as they are known; at most once, before the reply."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The whole reply; the last event of every stream that does not raise.

    An empty reply is one without visible text and calls. After `LENGTH` the last call's arguments
    may be incomplete JSON.

    Attributes:
        content: Text and reasoning in order.
        tool_calls: Calls in order.
        finish_reason: Why the model stopped.
        usage: Tokens of this call.
        model: The model's name as the server reports it.
    """

    content: tuple[ReplyPart, ...]
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    usage: Usage
    model: str = ""

    @property
    def text(self) -> str:
        """All visible text, joined."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def reasoning(self) -> str:
        """All shown reasoning, joined."""
        return "".join(part.text for part in self.content if isinstance(part, ReasoningPart))

    @property
    def is_empty(self) -> bool:
        """Whether the reply has neither visible text nor calls."""
        return not self.tool_calls and is_blank(self.text)

    def to_message(self) -> ChatMessage:
        """The reply as a message of the next prompt."""
        return ChatMessage(ChatRole.ASSISTANT, self.content, self.tool_calls)


ModelEvent: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | UsageEvent | ModelReply


class ChatModel(Protocol):
    """A model that answers a prompt."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answers `request` piece by piece.

        The last event is exactly one `ModelReply`, whose text and calls equal the deltas joined
        (a call's arguments may be cleaned up, never changed in meaning). Close the iterator
        (`contextlib.aclosing`) to abort the call at the provider.

        Raises:
            ModelError: The call failed. Deltas that were yielded before must be discarded.
        """
        ...
