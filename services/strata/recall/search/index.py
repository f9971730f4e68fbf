"""Writes and searches messages in the vector index."""

from __future__ import annotations

from collections.abc import Sequence

from strata.recall.domain.messages import Message
from strata.recall.domain.query_roles import query_role
from strata.recall.domain.search import Mode, SearchQuery
from strata.recall.domain.search_text import is_indexed, searchable_text
from strata.recall.domain.speakers import in_first_person
from strata.shared.messages import MessageRole
from strata.shared.search.embedding import Embedder, EmbeddingModels
from strata.shared.search.indexing.generations import Routes
from strata.shared.search.indexing.text_index import CHUNK_TOKENS, IndexEntry, TextIndex
from strata.shared.search.time_expressions import TimeRange, just_before
from strata.shared.search.time_preference import newest_share, time_preferences
from strata.shared.search.vectors import (
    Collection,
    FieldKind,
    Hit,
    NeighbourFields,
    Preference,
    StartGate,
    VectorIndex,
    Where,
)
from strata.shared.search.vectors.sparse import SparseEncoder

# Replies of models are long: ten of them have a hundred chunks. In measurements, a depth of 60
# missed three percent of the evidence; 300 found one percent more, in twice the time.
MESSAGES = Collection(
    name="messages",
    fields={
        "agent_id": FieldKind.KEYWORD,
        "conversation_id": FieldKind.KEYWORD,
        "role": FieldKind.KEYWORD,
        "run_id": FieldKind.KEYWORD,
        "create_time": FieldKind.DATETIME,
    },
    neighbours=NeighbourFields("conversation_id", "sequence", "chars"),
    is_chat=True,
    unindexed=("speaker",),
    depth=150,
)
# Like the time (`WHEN_WEIGHT`), the role or the speaker decides between equally relevant messages,
# and does not outweigh the meaning.
WHOSE_WEIGHT = 0.15


class MessageIndex:
    """Writes messages to the index and searches them; arguments as for `TextIndex`."""

    def __init__(
        self,
        index: VectorIndex,
        models: EmbeddingModels | Embedder,
        sparse: SparseEncoder,
        *,
        routes: Routes | None = None,
    ) -> None:
        self.texts = TextIndex(
            index, models, sparse, MESSAGES, chunk_tokens=CHUNK_TOKENS, routes=routes
        )

    async def is_missing(self) -> bool:
        """See `TextIndex.is_missing`."""
        return await self.texts.is_missing()

    async def is_empty(self) -> bool:
        """See `TextIndex.is_empty`."""
        return await self.texts.is_empty()

    async def ensure(self) -> None:
        """See `TextIndex.ensure`."""
        await self.texts.ensure()

    async def write(self, project_id: str, messages: Sequence[Message]) -> None:
        """Writes messages; idempotent, since messages never change.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        if entries := entries_of(messages):
            await self.texts.put(project_id, entries, replace=False)

    async def remove(self, project_id: str, ids: Sequence[str]) -> None:
        """See `TextIndex.remove`."""
        await self.texts.remove(project_id, ids)

    async def remove_agent(self, project_id: str, agent_id: str) -> None:
        """Removes all messages of an agent.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        await self.texts.remove_where(project_id, Where(eq={"agent_id": agent_id}))

    async def has_unknown_words(self, query: str) -> bool:
        """See `TextIndex.has_unknown_words`."""
        return await self.texts.has_unknown_words(query)

    async def search(
        self,
        project_id: str,
        query: SearchQuery,
        time_ranges: Sequence[TimeRange],
        limit: int,
        *,
        speakers: Sequence[str] = (),
        weak: bool = False,
        after: StartGate | None = None,
    ) -> list[Hit]:
        """Returns the best messages, best first.

        Args:
            project_id: The project.
            query: The query.
            time_ranges: Times that the query mentions.
            limit: Maximum of messages.
            speakers: The speakers that the query names; see `in_first_person`.
            weak: See `TextIndex.search`.
            after: See `VectorIndex.query`.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        wording = in_first_person(query.text, speakers) if speakers else ""
        return await self.texts.search(
            project_id,
            query.text,
            _where(query),
            limit,
            wordings=[wording] if wording else (),
            prefer=preferences(query, time_ranges, speakers),
            newest_share=newest_share(query.text),
            words=query.mode is not Mode.SEMANTIC,
            weak=weak,
            after=after,
        )


def entries_of(messages: Sequence[Message]) -> list[IndexEntry]:
    """Returns the index entries of messages; those that are not indexed are left out."""
    return [
        IndexEntry(
            message.id,
            text,
            {
                "agent_id": message.agent_id,
                "conversation_id": message.conversation_id,
                "role": message.role.value,
                "run_id": message.run_id,
                "create_time": message.create_time,
                "sequence": message.sequence,
                "chars": len(text),
                **_speaker(message),
            },
        )
        for message in messages
        if is_indexed(message) and (text := searchable_text(message))
    ]


def preferences(
    query: SearchQuery, time_ranges: Sequence[TimeRange], speakers: Sequence[str] = ()
) -> list[Preference]:
    """Returns the preferences of a query: role, speakers and times that it refers to."""
    role = query_role(query.text)
    whose = [] if role is None else [Preference(WHOSE_WEIGHT, "role", role.value)]
    whose += [Preference(WHOSE_WEIGHT, "speaker", name) for name in speakers]
    return whose + time_preferences(time_ranges)


def _speaker(message: Message) -> dict[str, str]:
    has_speaker = message.role is MessageRole.USER and message.name
    return {"speaker": message.name} if has_speaker else {}


def _where(query: SearchQuery) -> Where:
    one_conversation = {"conversation_id": query.conversation_id} if query.conversation_id else {}
    return Where(
        eq={"agent_id": query.agent_id, **one_conversation},
        any_of={"role": [role.value for role in query.roles]},
        none_of={"run_id": [query.exclude_run_id]} if query.exclude_run_id else {},
        since=query.start_time,
        # The end is inclusive in the index and exclusive in the request.
        until=just_before(query.end_time),
    )
