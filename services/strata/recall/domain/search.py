"""Searching messages: what is asked, and what is answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from strata.recall.domain.messages import Message, Role
from strata.shared.reranking import Report
from strata.shared.time_expressions import TimeRange
from strata.shared.vectors.result_merge import BELOW_FLOOR, Look, Place

DEFAULT_ROLES = (Role.USER, Role.ASSISTANT, Role.SUMMARY)


class Mode(StrEnum):
    """How matches are looked for."""

    FULL_TEXT = "full text"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What to look for in an agent's messages; times are UTC, ``end_time`` is exclusive.

    Attributes:
        neighbours: Messages before and after each hit to return with it.
        explain: Tell what the conditions leave out.
        timezone: IANA name, of the person who asks.
        reference_time: What words like "yesterday" count from; None is now.
    """

    agent_id: str
    text: str
    limit: int
    conversation_id: str = ""
    roles: tuple[Role, ...] = DEFAULT_ROLES
    start_time: datetime | None = None
    end_time: datetime | None = None
    exclude_run_id: str = ""
    neighbours: int = 0
    mode: Mode = Mode.HYBRID
    explain: bool = False
    timezone: str = ""
    reference_time: datetime | None = None

    def without_conditions(self) -> SearchQuery:
        """Returns the same question to all that the agent has."""
        return replace(
            self,
            conversation_id="",
            roles=DEFAULT_ROLES,
            start_time=None,
            end_time=None,
            exclude_run_id="",
        )

    def left_out_by(self, message: Message) -> tuple[str, ...]:
        """Returns the conditions, as fields of the request, that a message does not meet."""
        failed = {
            "conversation_id": self.conversation_id not in ("", message.conversation_id),
            "roles": message.role not in self.roles,
            "start_time": self.start_time is not None and message.create_time < self.start_time,
            "end_time": self.end_time is not None and message.create_time >= self.end_time,
            "exclude_run_id": bool(self.exclude_run_id) and message.run_id == self.exclude_run_id,
        }
        return tuple(name for name, fails in failed.items() if fails)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A found message.

    Attributes:
        mode: ``hybrid``, ``vector`` or ``fts``: which arms found it.
        score: What the hits are ordered by.
        vector_rank: Place by meaning, from 1; None if not found so.
        fts_rank: Place by words, from 1; None if not found so.
        why: The same in words.
        neighbours: The messages around it, in order.
        rerank_score: What the reranker gave it; None if it was not asked.
        rerank_rank: Place by that, from 1; None likewise.
    """

    message: Message
    mode: str
    score: float
    vector_rank: int | None
    fts_rank: int | None
    why: str = ""
    neighbours: tuple[Message, ...] = ()
    rerank_score: float | None = None
    rerank_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A condition, and what of the best matches it leaves out."""

    condition: str
    count: int
    best_message_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search gives, best first."""

    hits: tuple[SearchHit, ...]
    exclusions: tuple[Exclusion, ...] = ()
    spoken_times: tuple[TimeRange, ...] = ()
    reranking: Report | None = None


def exclusions(
    query: SearchQuery, matches: Iterable[tuple[Message, Place]]
) -> tuple[Exclusion, ...]:
    """Returns what the conditions of a query, and the floor, leave out of matches, best first."""
    found: dict[str, Exclusion] = {}
    for message, place in matches:
        for name in (*query.left_out_by(message), *((BELOW_FLOOR,) if place.weak else ())):
            known = found.get(name, Exclusion(name, 0, message.id))
            found[name] = replace(known, count=known.count + 1)
    return tuple(found.values())


class SearchStore(Protocol):
    """What searching needs of the log; all methods work in the current project."""

    def look(
        self, query: SearchQuery, spoken: Sequence[TimeRange], *, all_words: bool = False
    ) -> AbstractAsyncContextManager[Look[Message]]:
        """Looks at the messages that meet the query's conditions and hold its phrases.

        They are seen as they are when the context is entered.

        Args:
            query: The question.
            spoken: Times that it speaks of; what was said then comes first.
            all_words: Search all messages by words, also those that the index has.
        """
        ...

    async def by_words(
        self, query: SearchQuery, spoken: Sequence[TimeRange]
    ) -> list[tuple[Message, float]]:
        """Returns the best by words with their scores, under the query's conditions."""
        ...

    async def around(
        self, messages: Sequence[Message], count: int
    ) -> dict[str, tuple[Message, ...]]:
        """Returns the neighbours of each message in its conversation, by its id."""
        ...
