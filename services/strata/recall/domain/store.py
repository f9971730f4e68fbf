"""What recall needs of its store; every implementation passes one contract suite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from strata.recall.domain.messages import (
    CommittedStep,
    Compaction,
    Cursor,
    Image,
    Message,
    MessageFilter,
    MessagePage,
    Step,
    TurnStart,
    Window,
)


class WindowStore(Protocol):
    """Windows. Each method is one transaction; all work in the current project."""

    async def open(
        self, conversation_id: str, agent_id: str, messages: Sequence[Message], language: str
    ) -> Window:
        """Creates a window; MUST return an existing one unchanged."""
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
    ) -> TurnStart:
        """Stores the inputs of a run once and takes the fence for the attempt.

        With `clear` the first attempt takes everything but the system message and what is pinned
        out of the window before.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``.
            AbortedError: ``STALE_ATTEMPT``: a newer attempt or a later run has the window.
        """
        ...

    async def commit_step(self, step: Step) -> CommittedStep:
        """Stores a step and puts it into the window; MUST give a repeated step the first answer.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``.
            AbortedError: ``STALE_ATTEMPT``.
        """
        ...

    async def compact(self, compaction: Compaction) -> Window:
        """Stores a summary and swaps the window; MUST give a repeated swap the first answer.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``.
            InvalidArgumentError: What is kept is not of the window, or lacks a pinned message.
            AbortedError: ``STALE_ATTEMPT`` or ``REVISION_MISMATCH``.
        """
        ...

    async def evict(self, conversation_id: str, agent_id: str, until_sequence: int) -> int:
        """Takes messages up to a sequence out of a window; see `domain.eviction`.

        Repeating it MUST change nothing. It needs no fence: it names the messages.

        Returns:
            How many messages left.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``.
        """
        ...

    async def delete_agent(self, agent_id: str) -> int:
        """Deletes all windows and messages of an agent, and returns how many messages."""
        ...


class ForkStore(Protocol):
    """Conversations that start where others were."""

    async def fork(self, source_id: str, conversation_id: str, until_id: str) -> None:
        """Opens a conversation with the window of another as it was at a message.

        Args:
            source_id: The conversation to copy.
            conversation_id: The new one; MUST stay as it is if it is there.
            until_id: The last message; empty for the newest. Its call's return comes along.

        Raises:
            NotFoundError: ``WINDOW_NOT_FOUND``, ``MESSAGE_NOT_FOUND``.
        """
        ...


class ImageStore(Protocol):
    """Images of messages."""

    async def get(self, image_id: str) -> Image:
        """Returns an image of the current project.

        Raises:
            NotFoundError: ``IMAGE_NOT_FOUND``.
        """
        ...


class PinStore(Protocol):
    """What must stay in a window."""

    async def set(self, message_id: str, *, pinned: bool) -> Message:
        """Pins a message or takes its pin away; repeating it changes nothing.

        A message that is pinned is in the window afterwards, with all messages of its step.

        Raises:
            NotFoundError: ``MESSAGE_NOT_FOUND``.
            InvalidArgumentError: It is a system message or a summary.
        """
        ...


class MessageStore(Protocol):
    """The log, for reading; all methods work in the current project."""

    async def get(self, message_id: str) -> Message:
        """Returns a message.

        Raises:
            NotFoundError: ``MESSAGE_NOT_FOUND``.
        """
        ...

    async def page(self, wanted: MessageFilter, limit: int, cursor: Cursor | None) -> MessagePage:
        """Returns a page of a listing.

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
        """Returns from which sequence on messages were stored at a time or later.

        It goes by halves, so it may be a little off where messages are not in the order of time.

        Args:
            conversation_id: The conversation.
            since: The time.
            first: Not before this sequence.
            last: Not after it; None is returned if there is none until then.
        """
        ...
