"""Writes and searches passages and chunks of files in the vector index."""

from __future__ import annotations

import asyncio
from collections.abc import Collection as Group
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from strata.archival.domain.chunks import ChunkBatch, chunk_key
from strata.archival.domain.passages import Filter, Passage, TagMatch
from strata.archival.store.embedding_assignment import EmbeddingAssignment
from strata.shared.search.embedding import Embedder, EmbeddingModels
from strata.shared.search.fusion import merge_rankings
from strata.shared.search.indexing.generations import Routes, Serving, first_generation
from strata.shared.search.indexing.text_index import CHUNK_TOKENS, IndexEntry, TextIndex, as_models
from strata.shared.search.reindexing.routes import GenerationsByModel
from strata.shared.search.time_expressions import TimeRange, just_before
from strata.shared.search.time_preference import newest_share, time_preferences
from strata.shared.search.vectors import (
    Collection,
    FieldKind,
    Hit,
    NeighbourFields,
    StartGate,
    VectorIndex,
    Where,
)
from strata.shared.search.vectors.sparse import SparseEncoder

PASSAGES = Collection(
    name="passages",
    fields={
        "archive_id": FieldKind.KEYWORD,
        "tags": FieldKind.KEYWORD,
        "create_time": FieldKind.DATETIME,
    },
    # Most passages are one chunk, and candidates cost time in three processes. A depth of 60 did
    # not find more in measurements, with few questions: decision 0172.
    depth=40,
)
# Passages of archives with their own model, one generation for each model. A change of the
# default does not affect them.
ARCHIVE_PASSAGES = Collection(name="archive-passages", fields=PASSAGES.fields, depth=PASSAGES.depth)
# A separate collection, since files and passages have different word frequencies.
FILE_CHUNKS = Collection(
    name="file-chunks",
    fields={
        "folder_id": FieldKind.KEYWORD,
        "file_id": FieldKind.KEYWORD,
        "set_id": FieldKind.KEYWORD,
    },
    neighbours=NeighbourFields("set_id", "ordinal", "chars"),
)


class AssignmentReader(Protocol):
    """Reads the embedding models of archives; see `EmbeddingAssignments`."""

    async def of(
        self, project_id: str, archive_ids: Group[str]
    ) -> Mapping[str, EmbeddingAssignment]:
        """Returns the assignments of archives by id; missing archives are left out."""
        ...


class DefaultAssignments:
    """Assigns the default to every archive."""

    async def of(
        self, project_id: str, archive_ids: Group[str]
    ) -> Mapping[str, EmbeddingAssignment]:
        """See `AssignmentReader.of`."""
        return {}


class PassageIndex:
    """Writes passages to the index and searches them.

    Args:
        index: The engine.
        models: The embedding models, or a single one.
        sparse: Makes the sparse vectors for the search by words.
        routes: The generations of archives that follow the default.
        own: The generations of archives with their own model.
        assignments: The models of archives; without it all follow the default.
    """

    def __init__(
        self,
        index: VectorIndex,
        models: EmbeddingModels | Embedder,
        sparse: SparseEncoder,
        *,
        routes: Routes | None = None,
        own: GenerationsByModel | None = None,
        assignments: AssignmentReader | None = None,
    ) -> None:
        self.models = as_models(models)
        self.texts = TextIndex(
            index, self.models, sparse, PASSAGES, chunk_tokens=CHUNK_TOKENS, routes=routes
        )
        self.own_texts = TextIndex(
            index, self.models, sparse, ARCHIVE_PASSAGES, chunk_tokens=CHUNK_TOKENS
        )
        self._own = own
        self._assignments = assignments or DefaultAssignments()

    async def is_missing(self) -> bool:
        """See `TextIndex.is_missing`."""
        if await self.texts.is_missing():
            return True
        for generation in await self._own_generations(fresh=True):
            if not await self.own_texts.has(generation):
                return True
        return False

    async def is_empty(self) -> bool:
        """See `TextIndex.is_empty`; all generations, since archives may all have their own."""
        if not await self.texts.is_empty():
            return False
        for generation in await self._own_generations(fresh=True):
            if not await self.own_texts.holds_nothing(generation):
                return False
        return True

    async def ensure(self) -> None:
        """See `TextIndex.ensure`."""
        await self.texts.ensure()
        for generation in await self._own_generations(fresh=True):
            await self.own_texts.make(generation)

    def generation_of(self, model: str) -> Serving:
        """Returns the generation of the archives that have this model of their own."""
        return first_generation(ARCHIVE_PASSAGES, self.models, model)

    async def open_own(self, model: str) -> Serving:
        """Returns the generation of archives with this model; creates it if it is missing.

        Raises:
            UnavailableError: Database or engine cannot be reached.
        """
        generation = self.generation_of(model)
        if self._own is not None and not await self._own.knows(generation):
            # In this order: a recorded generation that does not exist counts as lost.
            await self.own_texts.make(generation)
            await self._own.add(generation)
        return generation

    async def write(self, project_id: str, passages: Sequence[Passage]) -> None:
        """Writes the given revisions of passages; removes deleted passages.

        Raises:
            UnavailableError: The engine or a model cannot be reached.
        """
        deleted_ids = [passage.id for passage in passages if passage.deleted]
        if deleted_ids:
            await self.remove(project_id, deleted_ids)
        present = [passage for passage in passages if not passage.deleted]
        if not present:
            return
        # The assignments are read after the passages: see `Routes.written`.
        assignments = await self._assignments.of(
            project_id, {passage.archive_id for passage in present}
        )
        groups: dict[tuple[str, ...], list[Passage]] = {}
        for passage in present:
            written = assignments.get(passage.archive_id, EmbeddingAssignment()).written
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
        """Removes passages of any archive.

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
        time_ranges: Sequence[TimeRange] = (),
        *,
        weak: bool = False,
        after: StartGate | None = None,
    ) -> list[Hit]:
        """See `TextIndex.search`; prefers passages of the times that the query mentions.

        Archives of different models are searched separately, each with a vector of its model.
        Scores of all models have the same scale, from 0 (unrelated) to 1 (equal), so that the
        results can be merged.
        """
        prefer = time_preferences(time_ranges)
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
                newest_share=newest_share(query),
                within=one,
                uncut=several,
                weak=weak,
                after=after,
            )

        by_model = await asyncio.gather(*(ask(model) for model in groups))
        return (
            merge_rankings(by_model, limit)
            if several
            else [hit for hits in by_model for hit in hits]
        )

    async def has_unknown_words(
        self, project_id: str, query: str, archive_ids: Sequence[str]
    ) -> bool:
        """See `TextIndex.has_unknown_words`; True if it holds for any model of the archives."""
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
        # Saves a query if no archive has its own model.
        if not await self._own_generations():
            return {"": archive_ids}
        assignments = await self._assignments.of(project_id, archive_ids)
        groups: dict[str, list[str]] = {}
        for archive_id in archive_ids:
            groups.setdefault(
                assignments.get(archive_id, EmbeddingAssignment()).searched, []
            ).append(archive_id)
        return groups

    async def _own_generations(self, *, fresh: bool = False) -> Sequence[Serving]:
        return [] if self._own is None else await self._own.all(fresh=fresh)


def entry_of(passage: Passage) -> IndexEntry:
    """Returns the index entry of a passage."""
    vector = passage.vector
    return IndexEntry(
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


def chunk_entries(batch: ChunkBatch) -> list[IndexEntry]:
    """Returns the index entries of chunks of a file."""
    shared = {"folder_id": batch.folder_id, "file_id": batch.file_id, "set_id": batch.set_id}
    return [
        IndexEntry(
            chunk_key(batch.set_id, chunk.ordinal),
            chunk.indexed_text,
            {**shared, "ordinal": chunk.ordinal, "chars": len(chunk.text)},
        )
        for chunk in batch.chunks
    ]


class ChunkIndex:
    """Writes chunks of files to the index and searches them; arguments as for `TextIndex`."""

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

    async def is_empty(self) -> bool:
        """See `TextIndex.is_empty`."""
        return await self.texts.is_empty()

    async def ensure(self) -> None:
        """See `TextIndex.ensure`."""
        await self.texts.ensure()

    async def write(self, project_id: str, batch: ChunkBatch) -> None:
        """Writes chunks; idempotent, since chunks never change.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        await self.texts.put(project_id, chunk_entries(batch), replace=False)

    async def remove_set(self, project_id: str, set_id: str) -> None:
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
        after: StartGate | None = None,
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
        # The end is inclusive in the index and exclusive in the request.
        until=just_before(within.end_time),
    )
