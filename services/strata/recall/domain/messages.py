"""Messages and windows.

The parts of a message are plain JSON objects with a ``type``. Recall stores them unchanged and
reads only a few of their fields:

=====================  ====================================================================
``text``               ``text``
``image``              ``media_type``, ``image_id``, ``width``, ``height``, ``size_bytes``,
                       ``url`` (empty if a client sent the bytes), ``alt_text``, ``detail``
``reasoning``          ``text``, ``signature``, ``redacted`` (base64)
``tool_call``          ``tool_call_id``, ``name``, ``arguments``
``tool_return``        ``tool_call_id``, ``name``, ``status``, ``content``, ``stdout``,
                       ``stderr``, ``provenance``, ``images`` (each as above)
``approval_request``   ``approval_id``, ``tool_calls``, ``waiting_calls``, ``bindings``,
                       ``expire_time``
``approval_response``  ``approval_id``, ``decisions``
``summary``            ``text``, ``first_sequence``, ``last_sequence``, ``message_count``,
                       ``first_message_id``, ``last_message_id``
=====================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from strata.shared.messages import MessageRole
from strata.shared.record_fields import replace
from strata.shared.usage import Usage

Part = Mapping[str, Any]
Cursor = tuple[str | int | datetime, ...]


@dataclass(frozen=True, slots=True)
class StoredImage:
    """The bytes of an image. The id is their SHA-256, so that equal images are stored once."""

    id: str
    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Message:
    """One row of the log of a conversation.

    Attributes:
        id: ``message-`` id, chosen by the writer.
        role: The role of the sender.
        parts: The content, in order; see the module docstring.
        conversation_id: The conversation; empty until stored.
        agent_id: The agent; empty until stored.
        sequence: Position in the conversation from 0; -1 until stored.
        step: Number of the step in its run from 1; 0 for inputs and first messages.
        usage: Tokens of the model call.
        create_time: When it was written, UTC.
        copied_from_id: In a fork, the message that it is a copy of; empty for originals.
        images: Images to store with a new message; empty in messages that are read.
    """

    id: str
    role: MessageRole
    parts: tuple[Part, ...]
    create_time: datetime
    conversation_id: str = ""
    agent_id: str = ""
    sequence: int = -1
    name: str = ""
    run_id: str = ""
    step_id: str = ""
    step: int = 0
    group_id: str = ""
    model: str = ""
    usage: Usage | None = None
    provenance: tuple[str, ...] = ()
    pinned: bool = False
    client_message_id: str = ""
    copied_from_id: str = ""
    images: tuple[StoredImage, ...] = ()

    def placed(self, conversation_id: str, agent_id: str, sequence: int) -> Self:
        """Returns the message as stored at a position of a conversation."""
        return replace(
            self,
            conversation_id=conversation_id,
            agent_id=agent_id,
            sequence=sequence,
            images=(),
        )

    def tool_call_ids(self) -> tuple[str, ...]:
        """Returns the ids of the tool calls in the message."""
        return tuple(p["tool_call_id"] for p in self.parts if p["type"] == "tool_call")

    def image_ids(self) -> tuple[str, ...]:
        """Returns the ids of the images in the message, without duplicates."""
        images = [p for p in self.parts if p["type"] == "image"]
        images += [image for p in self.parts for image in p.get("images", ())]
        ids = (image.get("image_id", "") for image in images)
        return tuple(dict.fromkeys(id_ for id_ in ids if id_))

    def tool_return_ids(self) -> tuple[str, ...]:
        """Returns the ids of the tool calls whose returns are in the message."""
        return tuple(p["tool_call_id"] for p in self.parts if p["type"] == "tool_return")


@dataclass(frozen=True, slots=True)
class Window:
    """The context window of a conversation.

    Attributes:
        messages: The messages in the window, in order; the first is the system message.
        revision: Increases with every change.
        message_count: Number of messages of the conversation, in the window or not.
        metadata_stale: True if the counts in the system message are outdated.
    """

    conversation_id: str
    agent_id: str
    revision: int
    messages: tuple[Message, ...]
    message_count: int
    metadata_stale: bool = False


@dataclass(frozen=True, slots=True)
class HeldWindow:
    """The part of a window that a caller holds from an earlier turn.

    Attributes:
        revision: Revision that it was read at.
        message_count: Its number of messages, from the system message on.
        last_message_id: The last of them.
    """

    revision: int
    message_count: int
    last_message_id: str


@dataclass(frozen=True, slots=True)
class TurnStart:
    """The state that a turn starts from.

    Attributes:
        window: The window, without the messages that the caller holds unchanged.
        inputs: The stored inputs.
        committed_steps: Number of steps that earlier attempts of the run committed.
        committed: The messages of those steps, in order.
        unchanged_count: Number of messages after the system message that the window leaves out.
    """

    window: Window
    inputs: tuple[Message, ...]
    committed_steps: int = 0
    committed: tuple[Message, ...] = ()
    unchanged_count: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A step to commit.

    Attributes:
        attempt: The attempt of the run; an attempt older than the fence is rejected.
        step: Number in the run, from 1.
        system_text: New text of the system message, if it was rebuilt for this step.
        metadata_stale: New value of the window's flag, None to keep it.
        evict_count: Number of oldest messages after the system message to evict.
    """

    conversation_id: str
    agent_id: str
    run_id: str
    attempt: int
    step: int
    messages: tuple[Message, ...]
    system_text: str | None = None
    metadata_stale: bool | None = None
    evict_count: int = 0


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """A stored step."""

    messages: tuple[Message, ...]
    revision: int
    message_count: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """A planned replacement of a window by a smaller one.

    Attributes:
        expected_revision: The revision of the window that the plan is based on.
        kept_ids: Messages that stay, in order, without the system message.
    """

    conversation_id: str
    run_id: str
    attempt: int
    expected_revision: int
    summary: Message
    kept_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Conditions on messages to list; either conversation or agent is set.

    ``from_id`` and ``to_id``, or the sequences, limit a conversation to a range; both ends are
    included.
    """

    conversation_id: str = ""
    agent_id: str = ""
    roles: tuple[MessageRole, ...] = ()
    run_id: str = ""
    newest_first: bool = False
    from_id: str = ""
    to_id: str = ""
    from_sequence: int = 0
    to_sequence: int | None = None
    pinned_only: bool = False

    def cursor_kinds(self) -> tuple[type, ...]:
        """Returns the types of the sort key: sequence, or time and id across conversations."""
        return (int,) if self.conversation_id else (datetime, str)


@dataclass(frozen=True, slots=True)
class MessagePage:
    """A page of messages, and the cursor of the next page (None at the end)."""

    messages: Sequence[Message] = field(default_factory=tuple)
    next_cursor: Cursor | None = None
