"""Searches of messages: queries, and the interface of the store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from strata.recall.domain.messages import Message
from strata.recall.domain.search_text import INDEXED_ROLES
from strata.shared.messages import MessageRole
from strata.shared.search.result_merge import DatabaseSnapshot
from strata.shared.search.time_expressions import TimeRange

MOST_SPEAKERS = 50
"""Maximum of names that a query is searched for."""
DEFAULT_ROLES = (MessageRole.USER, MessageRole.ASSISTANT, MessageRole.SUMMARY)


class Mode(StrEnum):
    """The kind of search."""

    FULL_TEXT = "full text"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search in an agent's messages; times are UTC, ``end_time`` is exclusive.

    Attributes:
        neighbours: Number of messages before and after each hit to return with it; see
            `SearchStore.around`.
        explain: Explain each hit, and count what the conditions leave out.
        timezone: IANA name of the user's time zone.
        reference_time: The time that words like "yesterday" refer to; None for now.
    """

    agent_id: str
    text: str
    limit: int
    conversation_id: str = ""
    roles: tuple[MessageRole, ...] = DEFAULT_ROLES
    start_time: datetime | None = None
    end_time: datetime | None = None
    exclude_run_id: str = ""
    neighbours: int = 0
    mode: Mode = Mode.HYBRID
    explain: bool = False
    timezone: str = ""
    reference_time: datetime | None = None

    @property
    def beyond_index(self) -> bool:
        """Whether it asks for roles that the index does not contain."""
        return not INDEXED_ROLES.issuperset(self.roles)

    def without_conditions(self) -> SearchQuery:
        """Returns the same query on all messages of the agent."""
        return replace(
            self,
            conversation_id="",
            roles=DEFAULT_ROLES,
            start_time=None,
            end_time=None,
            exclude_run_id="",
        )

    def left_out_by(self, message: Message) -> tuple[str, ...]:
        """Returns the names of the request's fields whose conditions a message does not meet."""
        failed = {
            "conversation_id": self.conversation_id not in ("", message.conversation_id),
            "roles": message.role not in self.roles,
            "start_time": self.start_time is not None and message.create_time < self.start_time,
            "end_time": self.end_time is not None and message.create_time >= self.end_time,
            "exclude_run_id": bool(self.exclude_run_id) and message.run_id == self.exclude_run_id,
        }
        return tuple(name for name, fails in failed.items() if fails)


class SearchStore(Protocol):
    """Searches the stored messages of the current project."""

    def open_snapshot(
        self, query: SearchQuery, time_ranges: Sequence[TimeRange], *, all_words: bool = False
    ) -> AbstractAsyncContextManager[DatabaseSnapshot[Message]]:
        """Opens a snapshot of the messages that meet the query's conditions and phrases.

        Args:
            query: The query.
            time_ranges: Times that the query mentions; messages of these times are preferred.
            all_words: Search all messages by words, also those that are indexed.
        """
        ...

    async def speakers(self, agent_id: str) -> Sequence[str]:
        """Returns the names of people who wrote to an agent, at most `MOST_SPEAKERS`.

        Raises:
            NotFoundError: ``AGENT_NOT_FOUND``.
        """
        ...

    async def by_words(
        self, query: SearchQuery, time_ranges: Sequence[TimeRange]
    ) -> list[tuple[Message, float]]:
        """Returns the messages that match the words best, with scores, under the conditions."""
        ...

    async def check_agent(self, agent_id: str, conversation_id: str) -> None:
        """Refuses an agent, or a conversation of it (if not empty), that does not exist.

        Raises:
            NotFoundError: ``AGENT_NOT_FOUND``, ``CONVERSATION_NOT_FOUND``.
        """
        ...

    async def around(
        self, messages: Sequence[Message], count: int, *, exclude_run_id: str = ""
    ) -> dict[str, tuple[Message, ...]]:
        """Returns the neighbours of each message in its conversation, by id of the message.

        Neighbours are messages of `DEFAULT_ROLES` with a text, an image or a ``send_message``.
        Heartbeats and messages that call tools which show messages are passed over.

        Args:
            messages: The messages.
            count: Neighbours before and after each message.
            exclude_run_id: Leave out messages of this run.
        """
        ...
