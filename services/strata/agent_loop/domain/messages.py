"""Messages of a conversation as recall stores them, apart from any transport."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from strata.agent_loop.domain.approvals import ApprovalRequest, ApprovalResponse
from strata.agent_loop.models.domain import ImagePart, ReasoningPart, TextPart, ToolCall, Usage

SYNTHETIC_ID = "message-00000000-0000-0000-0000-000000000000"
"""Id of a message that is shown to the model and never stored."""


class MessageRole(StrEnum):
    """Who speaks in a stored message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    APPROVAL = "approval"
    SUMMARY = "summary"


class ToolStatus(StrEnum):
    """How a tool call ended; the value is what the model reads."""

    OK = "OK"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class Provenance(StrEnum):
    """Where a piece of context came from."""

    USER = "user"
    MODEL = "model"
    MEMORY = "memory"
    TOOL = "tool"
    WEB = "web"
    MCP = "mcp"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A call of a tool that code made while it ran.

    Attributes:
        id: Begins with the id of the call whose code it was.
        arguments: As they were run, JSON text; long ones are cut.
        status: How it ended; UNKNOWN also if nobody waited for its end.
        refused: It never came to the tool.
    """

    id: str
    name: str
    arguments: str
    status: ToolStatus
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ToolReturn:
    """What one tool call gave.

    Attributes:
        tool_call_id: The call that it answers.
        name: Name of the tool.
        status: How the call ended.
        content: What the model is shown: JSON with status, message and time.
        stdout: Lines that the tool printed; not shown to the model.
        stderr: Likewise.
        provenance: Where the text came from.
        taint: Untrusted labels of the memory that it holds.
        nested: Calls that its code made, in order; the model is not shown them.
        returned_by: Id of the API key that gave the return in an answer; empty if the tool ran.
        images: Images that it holds beside the text.
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
    """Returns a tool return whose images are described only, as in stored messages."""
    if not tool_return.images:
        return tool_return
    return replace(
        tool_return, images=tuple(replace(image, data=b"") for image in tool_return.images)
    )


@dataclass(frozen=True, slots=True)
class SummaryPart:
    """A summary that stands for messages that compaction took out of the window.

    Attributes:
        text: What it says.
        first_sequence: First sequence of the evicted range.
        last_sequence: Last sequence of it.
        message_count: How many messages it stands for, those of earlier summaries included.
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
    """A part that this release carries along without reading it, as the contract's bytes."""

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


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; the fields are those of the contract.

    Attributes:
        copied: It is a copy, in a fork.
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

    @property
    def hidden(self) -> bool:
        """Whether the system says it to the model in the user's place: no person is shown it."""
        return self.role is MessageRole.USER and self.provenance == (Provenance.SYSTEM,)

    @property
    def text(self) -> str:
        """All visible text, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """All images, those of tool returns included."""
        own = tuple(part for part in self.parts if isinstance(part, ImagePart))
        return (*own, *(image for tool_return in self.tool_returns for image in tool_return.images))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of an assistant message."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def approval_request(self) -> ApprovalRequest | None:
        """The request for approval that the message makes."""
        return next((part for part in self.parts if isinstance(part, ApprovalRequest)), None)

    @property
    def approval_response(self) -> ApprovalResponse | None:
        """The answer to such a request."""
        return next((part for part in self.parts if isinstance(part, ApprovalResponse)), None)

    @property
    def tool_returns(self) -> tuple[ToolReturn, ...]:
        """The returns of a tool message."""
        return tuple(part for part in self.parts if isinstance(part, ToolReturn))


@dataclass(frozen=True, slots=True)
class MessageInput:
    """What a caller wants to say to an agent.

    Attributes:
        taint: Text of strangers in it.
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
        message_count: All messages stored in the conversation, in the window or not.
        metadata_stale: The counts in the system message are known to be old.
    """

    conversation_id: str
    agent_id: str
    revision: int
    messages: tuple[Message, ...]
    message_count: int
    metadata_stale: bool = False
