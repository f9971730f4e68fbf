"""The interfaces of the stores of recall."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from strata.recall.domain.messages import (
    CommittedStep,
    Compaction,
    Cursor,
    HeldWindow,
    Message,
    MessageFilter,
    MessagePage,
    Step,
    StoredImage,
    TurnStart,
    Window,
)


class WindowStore(Protocol):
    """Windows of the current project; each method is one transaction."""

    async def open(
        self, conversation_id: str, agent_id: str, messages: Sequence[Message], language: str
    ) -> Window:
        """Creates a window; MUST return an existing one unchanged.

        Raises:
            NotFoundError: ``AGENT_NOT_FOUND``: the agent was deleted a moment ago.
        """
        ...

    async def get(self, conversation_id: str) -> Window:
        """Returns a window.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``.
        """
        ...

    async def begin_turn(
        self,
        conversation_id: str,
        agent_id: str,
        run_id: str,
        attempt: int,
        inputs: Sequence[Message],
        *,
        clear: bool = False,
        held: HeldWindow | None = None,
    ) -> TurnStart:
        """Stores the inputs of a run once and sets the fence to the attempt.

        With `clear`, the first attempt removes all messages but the system message and pinned
        ones from the window first. Messages that the caller holds are left out of the result if
        none of them has changed or left the window; the system message never is.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``.
            AbortedError: ``STALE_ATTEMPT``: a newer attempt or a later run has the window.
        """
        ...

    async def commit_step(self, step: Step) -> CommittedStep:
        """Stores a step and adds it to the window; MUST return the first result if repeated.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``.
            AbortedError: ``STALE_ATTEMPT``.
        """
        ...

    async def compact(self, compaction: Compaction) -> Window:
        """Stores a summary and replaces the window; MUST return the first result if repeated.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``.
            InvalidArgumentError: A kept message is not in the window, or a pinned one is missing.
            AbortedError: ``STALE_ATTEMPT`` or ``REVISION_MISMATCH``.
        """
        ...

    async def evict(self, conversation_id: str, agent_id: str, until_sequence: int) -> int:
        """Evicts messages up to a sequence from a window; see `domain.eviction`.

        MUST be idempotent. It needs no fence, since the sequence identifies the messages.

        Returns:
            The number of evicted messages.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``.
        """
        ...

    async def delete_agent(self, agent_id: str) -> int:
        """Deletes all windows and messages of an agent; returns the number of messages."""
        ...


class ForkStore(Protocol):
    """Forks of conversations."""

    async def fork(self, source_id: str, conversation_id: str, until_id: str) -> None:
        """Creates a conversation with the window that another one had at a message.

        Args:
            source_id: The conversation to copy.
            conversation_id: The new conversation; MUST not change if it exists.
            until_id: The last message; empty for the newest. Returns of its calls are included.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``, ``MESSAGE_NOT_FOUND``.
        """
        ...


class ImageStore(Protocol):
    """Images of messages."""

    async def get(self, image_id: str) -> StoredImage:
        """Returns an image of the current project.

        Raises:
            NotFoundError: ``IMAGE_NOT_FOUND``.
        """
        ...


class PinStore(Protocol):
    """Pins of messages."""

    async def set(self, message_id: str, *, pinned: bool) -> Message:
        """Pins or unpins a message; idempotent.

        A pinned message is in the window afterwards, with all messages of its step.

        Raises:
            NotFoundError: ``MESSAGE_NOT_FOUND``.
            InvalidArgumentError: It is a system message or a summary.
        """
        ...


class MessageStore(Protocol):
    """Reads the messages of the current project."""

    async def get(self, message_id: str) -> Message:
        """Returns a message.

        Raises:
            NotFoundError: ``MESSAGE_NOT_FOUND``.
        """
        ...

    async def page(
        self, message_filter: MessageFilter, limit: int, cursor: Cursor | None
    ) -> MessagePage:
        """Returns a page of the messages that match a filter.

        Raises:
            NotFoundError: ``MESSAGE_NOT_FOUND``: an end of the range is not in the conversation.
        """
        ...

    async def newest_summary(self, conversation_id: str) -> Message | None:
        """Returns the newest summary in a window; None if there is none, or no window."""
        ...

    async def first_since(
        self, conversation_id: str, since: datetime, first: int, last: int
    ) -> int | None:
        """Returns the first sequence whose message was stored at a time or later.

        It is a binary search, so it may be slightly off where times are not in order.

        Args:
            conversation_id: The conversation.
            since: The time.
            first: The first sequence to consider.
            last: The last sequence to consider; None is returned if no message matches.
        """
        ...
