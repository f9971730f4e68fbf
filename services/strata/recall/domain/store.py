"""What recall needs of its store; every implementation passes one contract suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strata.recall.domain.messages import (
    CommittedStep,
    Compaction,
    Cursor,
    Message,
    MessageFilter,
    MessagePage,
    SearchHit,
    SearchQuery,
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
    ) -> TurnStart:
        """Stores the inputs of a run once and takes the fence for the attempt.

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
            AbortedError: ``STALE_ATTEMPT`` or ``REVISION_MISMATCH``.
        """
        ...

    async def delete_agent(self, agent_id: str) -> int:
        """Deletes all windows and messages of an agent, and returns how many messages."""
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
        """Returns a page of a listing."""
        ...

    async def search(self, query: SearchQuery) -> list[SearchHit]:
        """Returns the best matches, best first; filters MUST apply before the limit."""
        ...
