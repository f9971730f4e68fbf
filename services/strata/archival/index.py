"""Passages and chunks of files in the vector index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from strata.archival.domain.chunks import ChunkBatch, chunk_key
from strata.archival.domain.passages import Filter, Passage, TagMatch
from strata.shared.embedding import Embedder, embed_chunked
from strata.shared.vectors import (
    Collection,
    Document,
    FieldKind,
    Hit,
    IndexedChunk,
    VectorIndex,
    Where,
)
from strata.shared.vectors.index import PayloadValue
from strata.shared.vectors.sparse import SparseEncoder

PASSAGES = Collection(
    name="passages",
    fields={
        "archive_id": FieldKind.KEYWORD,
        "tags": FieldKind.KEYWORD,
        "create_time": FieldKind.DATETIME,
    },
)
# A collection of its own: how rare a word is in the files says nothing of the passages.
FILE_CHUNKS = Collection(
    name="file-chunks",
    fields={
        "folder_id": FieldKind.KEYWORD,
        "file_id": FieldKind.KEYWORD,
        "set_id": FieldKind.KEYWORD,
    },
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A text to index."""

    id: str
    text: str
    payload: Mapping[str, PayloadValue]


class TextIndex:
    """One collection of texts, found by meaning and by words.

    Args:
        index: The engine.
        embedder: The model of the vectors.
        sparse: Makes the vectors of words.
        collection: Which one.
    """

    def __init__(
        self, index: VectorIndex, embedder: Embedder, sparse: SparseEncoder, collection: Collection
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._sparse = sparse
        self._collection = collection

    async def is_missing(self) -> bool:
        """Says whether there is no collection.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        return not await self._index.generations(self._collection)

    async def ensure(self) -> None:
        """Makes the collection if it is not there.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        await self._index.ensure(self._collection, self._embedder.model_id, self._embedder.dim)

    async def put(self, project_id: str, entries: Sequence[Entry], *, replace: bool) -> None:
        """Stores texts; ``replace`` if some may be there already, with more text.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        chunked = await embed_chunked(self._embedder, [entry.text for entry in entries])
        documents = [
            Document(
                id=entry.id,
                chunks=[
                    IndexedChunk(chunk.vector, self._sparse.document(chunk.text))
                    for chunk in chunks
                ],
                payload=entry.payload,
            )
            for entry, chunks in zip(entries, chunked, strict=True)
        ]
        await self._index.upsert(self._collection, project_id, documents, replace=replace)

    async def remove(self, project_id: str, ids: Sequence[str]) -> None:
        """Forgets texts by id.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        await self._index.delete(self._collection, project_id, ids)

    async def remove_where(self, project_id: str, where: Where) -> None:
        """Forgets texts by their payload.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        await self._index.delete_where(self._collection, project_id, where)

    async def search(self, project_id: str, query: str, where: Where, limit: int) -> list[Hit]:
        """Returns the best texts by meaning and words, best first.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        vector = (await self._embedder.embed([query], "query"))[0]
        return await self._index.query(
            self._collection,
            project_id,
            dense=vector,
            sparse=self._sparse.query(query),
            where=where,
            limit=limit,
        )


class PassageIndex:
    """Writes passages into the index and asks it; arguments as for `TextIndex`."""

    def __init__(self, index: VectorIndex, embedder: Embedder, sparse: SparseEncoder) -> None:
        self._texts = TextIndex(index, embedder, sparse, PASSAGES)

    async def is_missing(self) -> bool:
        """See `TextIndex.is_missing`."""
        return await self._texts.is_missing()

    async def ensure(self) -> None:
        """See `TextIndex.ensure`."""
        await self._texts.ensure()

    async def write(self, project_id: str, passages: Sequence[Passage]) -> None:
        """Brings the index up to the given revisions; deleted passages are forgotten.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        gone = [passage.id for passage in passages if passage.deleted]
        if gone:
            await self._texts.remove(project_id, gone)
        kept = [passage for passage in passages if not passage.deleted]
        if not kept:
            return
        entries = [
            Entry(
                passage.id,
                passage.text,
                {
                    "archive_id": passage.archive_id,
                    "tags": passage.tags,
                    "create_time": passage.create_time,
                },
            )
            for passage in kept
        ]
        changed = any(passage.revision > 1 for passage in kept)
        await self._texts.put(project_id, entries, replace=changed)

    async def search(self, project_id: str, query: str, within: Filter, limit: int) -> list[Hit]:
        """See `TextIndex.search`."""
        return await self._texts.search(project_id, query, _where(within), limit)


class ChunkIndex:
    """Writes chunks of files into the index and asks it; arguments as for `TextIndex`."""

    def __init__(self, index: VectorIndex, embedder: Embedder, sparse: SparseEncoder) -> None:
        self._texts = TextIndex(index, embedder, sparse, FILE_CHUNKS)

    async def is_missing(self) -> bool:
        """See `TextIndex.is_missing`."""
        return await self._texts.is_missing()

    async def ensure(self) -> None:
        """See `TextIndex.ensure`."""
        await self._texts.ensure()

    async def write(self, project_id: str, batch: ChunkBatch) -> None:
        """Stores chunks; they never change, so that writing them again does no harm.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        payload = {
            "folder_id": batch.folder_id,
            "file_id": batch.file_id,
            "set_id": batch.set_id,
        }
        entries = [
            Entry(chunk_key(batch.set_id, chunk.ordinal), chunk.text, payload)
            for chunk in batch.chunks
        ]
        await self._texts.put(project_id, entries, replace=False)

    async def forget(self, project_id: str, set_id: str) -> None:
        """Removes all chunks of a set.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        await self._texts.remove_where(project_id, Where(eq={"set_id": set_id}))

    async def search(
        self, project_id: str, query: str, folder_ids: Sequence[str], limit: int
    ) -> list[Hit]:
        """See `TextIndex.search`."""
        where = Where(any_of={"folder_id": folder_ids})
        return await self._texts.search(project_id, query, where, limit)


def _where(within: Filter) -> Where:
    tags = {"tags": within.tags} if within.tags else {}
    by_any = within.tag_match is TagMatch.ANY
    until = within.end_time
    return Where(
        any_of={"archive_id": within.archive_ids, **(tags if by_any else {})},
        all_of={} if by_any else tags,
        since=within.start_time,
        # The index includes the moment, the request does not.
        until=None if until is None else until - timedelta(microseconds=1),
    )
