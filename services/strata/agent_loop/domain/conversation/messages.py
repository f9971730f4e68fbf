"""Messages of a conversation, as recall stores them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from strata.agent_loop.domain.conversation.approvals import ApprovalRequest, ApprovalResponse
from strata.agent_loop.domain.model.chat import ImagePart, ReasoningPart, TextPart, ToolCall
from strata.agent_loop.domain.model.derived import Derived
from strata.shared.cached_property import CachedProperty
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.usage import Usage


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A tool call that code made while it ran.

    Attributes:
        id: Begins with the id of the call that ran the code.
        arguments: JSON text, truncated if long.
        status: How it ended; UNKNOWN also if the code did not wait for its end.
        refused: It was refused before it reached the tool.
    """

    id: str
    name: str
    arguments: str
    status: ToolStatus
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ToolReturn:
    """The return of one tool call.

    Attributes:
        tool_call_id: The call that it answers.
        name: Name of the tool.
        status: How the call ended.
        content: JSON text for the model, with status, message and time.
        stdout: Lines that the tool printed; not shown to the model.
        stderr: Error lines that the tool printed; not shown to the model.
        provenance: The source of the text.
        taint: Untrusted labels of the memory in it.
        nested: Calls that its code made, in order; not shown to the model.
        returned_by: Id of the API key whose approval response carried the return; empty if the
            tool ran.
        images: Images beside the text.
    """

    tool_call_id: str
    name: str
    status: ToolStatus
    content: str
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
    provenance: Provenance | None = None
    taint: tuple[Provenance, ...] = ()
    nested: tuple[NestedCall, ...] = ()
    returned_by: str = ""
    images: tuple[ImagePart, ...] = ()


def without_bytes(tool_return: ToolReturn) -> ToolReturn:
    """Returns a tool return without the bytes of its images, as in stored messages."""
    if not tool_return.images:
        return tool_return
    return replace(
        tool_return, images=tuple(replace(image, data=b"") for image in tool_return.images)
    )


@dataclass(frozen=True, slots=True)
class SummaryPart:
    """A summary that replaces messages which compaction took out of the window.

    Attributes:
        text: The text of the summary.
        first_sequence: First sequence of the evicted range.
        last_sequence: Last sequence of the evicted range.
        message_count: Number of messages that it and the earlier summaries in it replace.
        first_message_id: First message of the evicted range.
        last_message_id: Last message of it.
    """

    text: str
    first_sequence: int = 0
    last_sequence: int = 0
    message_count: int = 0
    first_message_id: str = ""
    last_message_id: str = ""


@dataclass(frozen=True, slots=True)
class OpaquePart:
    """A part of a kind from a newer release; kept as serialized proto."""

    data: bytes


MessagePart: TypeAlias = (
    TextPart
    | ReasoningPart
    | ImagePart
    | ToolCall
    | ToolReturn
    | ApprovalRequest
    | ApprovalResponse
    | SummaryPart
    | OpaquePart
)


@dataclass(frozen=True)
class Message(Derived):
    """One message of a conversation, with the fields of the proto.

    Attributes:
        copied: It is a copy in a forked conversation.
    """

    id: str
    role: MessageRole
    parts: tuple[MessagePart, ...]
    conversation_id: str = ""
    agent_id: str = ""
    sequence: int = 0
    name: str = ""
    run_id: str = ""
    step_id: str = ""
    group_id: str = ""
    model: str = ""
    usage: Usage | None = None
    provenance: tuple[Provenance, ...] = ()
    pinned: bool = False
    client_message_id: str = ""
    create_time: datetime | None = None
    copied: bool = False

    @CachedProperty
    def hidden(self) -> bool:
        """Whether it is a system message with the user's role, which clients are not shown."""
        return self.role is MessageRole.USER and self.provenance == (Provenance.SYSTEM,)

    @CachedProperty
    def labels(self) -> tuple[Provenance, ...]:
        """Its labels and the labels of its tool returns, each once."""
        labels = list(self.provenance)
        for tool_return in self.tool_returns:
            if tool_return.provenance is not None:
                labels.append(tool_return.provenance)
            labels += tool_return.taint
        return tuple(dict.fromkeys(labels))

    @CachedProperty
    def text(self) -> str:
        """All visible text, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @CachedProperty
    def images(self) -> tuple[ImagePart, ...]:
        """All images, including images of tool returns."""
        own = tuple(part for part in self.parts if isinstance(part, ImagePart))
        return (*own, *(image for tool_return in self.tool_returns for image in tool_return.images))

    @CachedProperty
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of an assistant message."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @CachedProperty
    def approval_request(self) -> ApprovalRequest | None:
        """The approval request in the message, if any."""
        return next((part for part in self.parts if isinstance(part, ApprovalRequest)), None)

    @CachedProperty
    def approval_response(self) -> ApprovalResponse | None:
        """The approval response in the message, if any."""
        return next((part for part in self.parts if isinstance(part, ApprovalResponse)), None)

    @CachedProperty
    def tool_returns(self) -> tuple[ToolReturn, ...]:
        """The returns of a tool message."""
        return tuple(part for part in self.parts if isinstance(part, ToolReturn))


@dataclass(frozen=True, slots=True)
class MessageInput:
    """An input message for an agent.

    Attributes:
        taint: Untrusted labels of its content.
    """

    role: MessageRole
    parts: tuple[MessagePart, ...]
    name: str = ""
    client_message_id: str = ""
    taint: tuple[Provenance, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """The context window of a conversation as stored.

    Attributes:
        conversation_id: The conversation.
        agent_id: The agent that it belongs to.
        revision: Rises by one with every change.
        messages: In order; the first is the system message.
        message_count: Number of messages stored in the conversation, in the window or not.
        metadata_stale: The counts in the system message are outdated.
    """

    conversation_id: str
    agent_id: str
    revision: int
    messages: tuple[Message, ...]
    message_count: int
    metadata_stale: bool = False
