"""Passages and chunks of files in the vector index."""

from __future__ import annotations

import asyncio
from collections.abc import Collection as Group
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from strata.archival.domain.chunks import ChunkBatch, chunk_key
from strata.archival.domain.passages import Filter, Passage, TagMatch
from strata.archival.store.embedding_assignment import Home
from strata.shared.embedding import Embedder, EmbeddingModels
from strata.shared.time_expressions import TimeRange, just_before
from strata.shared.vectors import Collection, FieldKind, Hit, Moment, VectorIndex, Where
from strata.shared.vectors.fusion import joined
from strata.shared.vectors.reindex import Serving
from strata.shared.vectors.reindex.routes import OwnModels, Routes, first_generation
from strata.shared.vectors.sparse import SparseEncoder
from strata.shared.vectors.texts import CHUNK_TOKENS, Entry, TextIndex, models_of
from strata.shared.vectors.time_preference import of_that_time

PASSAGES = Collection(
    name="passages",
    fields={
        "archive_id": FieldKind.KEYWORD,
        "tags": FieldKind.KEYWORD,
        "create_time": FieldKind.DATETIME,
    },
    # Most passages are one chunk, and each candidate costs something in three processes. That 60
    # would find more was not seen, on few questions: decision 0065.
    depth=40,
)
# Passages of archives that follow no default, a generation for each model. They stay where they
# are when the default changes.
ARCHIVE_PASSAGES = Collection(name="archive-passages", fields=PASSAGES.fields, depth=PASSAGES.depth)
# A collection of its own: how rare a word is in the files says nothing of the passages.
FILE_CHUNKS = Collection(
    name="file-chunks",
    fields={
        "folder_id": FieldKind.KEYWORD,
        "file_id": FieldKind.KEYWORD,
        "set_id": FieldKind.KEYWORD,
    },
)


class Homes(Protocol):
    """Says under which models archives are indexed; see `EmbeddingAssignments`."""

    async def of(self, project_id: str, archive_ids: Group[str]) -> Mapping[str, Home]:
        """Returns the homes of those of some archives that there are."""
        ...


class NoHomes:
    """Every archive follows the default."""

    async def of(self, project_id: str, archive_ids: Group[str]) -> Mapping[str, Home]:
        """See `Homes.of`."""
        return {}


class PassageIndex:
    """Writes passages into the index and asks it.

    Args:
        index: The engine.
        models: The models of the vectors; a single one is all there is.
        sparse: Makes the vectors of words.
        routes: Where the passages of archives without a model of their own are.
        own: Which models archives have of their own.
        homes: Which archive has which.
    """

    def __init__(
        self,
        index: VectorIndex,
        models: EmbeddingModels | Embedder,
        sparse: SparseEncoder,
        *,
        routes: Routes | None = None,
        own: OwnModels | None = None,
        homes: Homes | None = None,
    ) -> None:
        self.models = models_of(models)
        self.texts = TextIndex(
            index, self.models, sparse, PASSAGES, chunk_tokens=CHUNK_TOKENS, routes=routes
        )
        self.own_texts = TextIndex(
            index, self.models, sparse, ARCHIVE_PASSAGES, chunk_tokens=CHUNK_TOKENS
        )
        self._own = own
        self._homes = homes or NoHomes()

    async def is_missing(self) -> bool:
        """See `TextIndex.is_missing`."""
        if await self.texts.is_missing():
            return True
        for generation in await self._own_generations(fresh=True):
            if not await self.own_texts.has(generation):
                return True
        return False

    async def ensure(self) -> None:
        """See `TextIndex.ensure`."""
        await self.texts.ensure()
        for generation in await self._own_generations(fresh=True):
            await self.own_texts.make(generation)

    def generation_of(self, model: str) -> Serving:
        """Returns the generation of archives with this model of their own."""
        return first_generation(ARCHIVE_PASSAGES, self.models, model)

    async def open_own(self, model: str) -> Serving:
        """Returns the generation of archives with this model, made if it is not there.

        Raises:
            UnavailableError: Database or engine cannot be reached.
        """
        generation = self.generation_of(model)
        if self._own is not None and not await self._own.knows(generation):
            # In this order: what is known and not there counts as lost.
            await self.own_texts.make(generation)
            await self._own.add(generation)
        return generation

    async def write(self, project_id: str, passages: Sequence[Passage]) -> None:
        """Brings the index up to the given revisions; deleted passages are forgotten.

        Raises:
            UnavailableError: The engine or a model cannot be reached.
        """
        gone = [passage.id for passage in passages if passage.deleted]
        if gone:
            await self.remove(project_id, gone)
        kept = [passage for passage in passages if not passage.deleted]
        if not kept:
            return
        # The homes are asked after the passages were read: see `Routes.written`.
        homes = await self._homes.of(project_id, {passage.archive_id for passage in kept})
        groups: dict[tuple[str, ...], list[Passage]] = {}
        for passage in kept:
            written = homes.get(passage.archive_id, Home()).written
            groups.setdefault(written, []).append(passage)
        for written, group in groups.items():
            entries = [entry_of(passage) for passage in group]
            changed = any(passage.revision > 1 for passage in group)
            for model in written:
                if model:
                    into = [await self.open_own(model)]
                    await self.own_texts.put(project_id, entries, replace=changed, into=into)
                else:
                    await self.texts.put(project_id, entries, replace=changed)

    async def remove(self, project_id: str, ids: Sequence[str]) -> None:
        """Forgets passages, whatever archive they were in.

        Raises:
            UnavailableError: Database or engine cannot be reached.
        """
        await self.texts.remove(project_id, ids)
        own = await self._own_generations(fresh=True)
        await self.own_texts.remove(project_id, ids, within=own)

    async def search(
        self,
        project_id: str,
        query: str,
        within: Filter,
        limit: int,
        spoken: Sequence[TimeRange] = (),
        *,
        weak: bool = False,
        after: Moment | None = None,
    ) -> list[Hit]:
        """See `TextIndex.search`; what was stored at a time that is spoken of comes first.

        Archives of several models are asked each with its own vector. The scores are of one
        scale, on which 0 is unrelated and 1 the same, so that they make one order.
        """
        prefer = of_that_time(spoken)
        groups = await self._by_model(project_id, within.archive_ids)
        several = len(groups) > 1

        async def ask(model: str) -> list[Hit]:
            where = _where(replace(within, archive_ids=tuple(groups[model])))
            texts, one = self.texts, None
            if model:
                texts, one = self.own_texts, self.generation_of(model)
            return await texts.search(
                project_id,
                query,
                where,
                limit,
                prefer=prefer,
                within=one,
                uncut=several,
                weak=weak,
                after=after,
            )

        found = await asyncio.gather(*(ask(model) for model in groups))
        return joined(found, limit) if several else [hit for each in found for hit in each]

    async def has_unknown_words(
        self, project_id: str, query: str, archive_ids: Sequence[str]
    ) -> bool:
        """See `TextIndex.has_unknown_words`; whether any model of the archives lacks a word."""
        for model in await self._by_model(project_id, archive_ids):
            texts, one = self.texts, None
            if model:
                texts, one = self.own_texts, self.generation_of(model)
            if await texts.has_unknown_words(query, within=one):
                return True
        return False

    async def _by_model(
        self, project_id: str, archive_ids: Sequence[str]
    ) -> Mapping[str, Sequence[str]]:
        # Where no archive has a model of its own, nothing has to be asked.
        if not await self._own_generations():
            return {"": archive_ids}
        homes = await self._homes.of(project_id, archive_ids)
        found: dict[str, list[str]] = {}
        for archive_id in archive_ids:
            found.setdefault(homes.get(archive_id, Home()).asked, []).append(archive_id)
        return found

    async def _own_generations(self, *, fresh: bool = False) -> Sequence[Serving]:
        return [] if self._own is None else await self._own.all(fresh=fresh)


def entry_of(passage: Passage) -> Entry:
    """Returns what the index gets of a passage."""
    vector = passage.vector
    return Entry(
        passage.id,
        passage.text,
        {
            "archive_id": passage.archive_id,
            "tags": passage.tags,
            "create_time": passage.create_time,
        },
        vector=None if vector is None else vector.values,
        vector_model="" if vector is None else vector.model,
    )


def chunk_entries(batch: ChunkBatch) -> list[Entry]:
    """Returns what the index gets of some chunks of a file."""
    payload = {"folder_id": batch.folder_id, "file_id": batch.file_id, "set_id": batch.set_id}
    return [
        Entry(chunk_key(batch.set_id, chunk.ordinal), chunk.text, payload) for chunk in batch.chunks
    ]


class ChunkIndex:
    """Writes chunks of files into the index and asks it; arguments as for `TextIndex`."""

    def __init__(
        self,
        index: VectorIndex,
        models: EmbeddingModels | Embedder,
        sparse: SparseEncoder,
        *,
        routes: Routes | None = None,
    ) -> None:
        self.texts = TextIndex(index, models, sparse, FILE_CHUNKS, routes=routes)

    async def is_missing(self) -> bool:
        """See `TextIndex.is_missing`."""
        return await self.texts.is_missing()

    async def ensure(self) -> None:
        """See `TextIndex.ensure`."""
        await self.texts.ensure()

    async def write(self, project_id: str, batch: ChunkBatch) -> None:
        """Stores chunks; they never change, so that writing them again does no harm.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        await self.texts.put(project_id, chunk_entries(batch), replace=False)

    async def forget(self, project_id: str, set_id: str) -> None:
        """Removes all chunks of a set.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        await self.texts.remove_where(project_id, Where(eq={"set_id": set_id}))

    async def has_unknown_words(self, query: str) -> bool:
        """See `TextIndex.has_unknown_words`."""
        return await self.texts.has_unknown_words(query)

    async def search(
        self,
        project_id: str,
        query: str,
        folder_ids: Sequence[str],
        limit: int,
        *,
        weak: bool = False,
        after: Moment | None = None,
    ) -> list[Hit]:
        """See `TextIndex.search`."""
        where = Where(any_of={"folder_id": folder_ids})
        return await self.texts.search(project_id, query, where, limit, weak=weak, after=after)


def _where(within: Filter) -> Where:
    tags = {"tags": within.tags} if within.tags else {}
    by_any = within.tag_match is TagMatch.ANY
    return Where(
        any_of={"archive_id": within.archive_ids, **(tags if by_any else {})},
        all_of={} if by_any else tags,
        since=within.start_time,
        # The index includes the moment, the request does not.
        until=just_before(within.end_time),
    )
