"""Passages in the vector index."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

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
from strata.shared.vectors.sparse import SparseEncoder

PASSAGES = Collection(
    name="passages",
    fields={
        "archive_id": FieldKind.KEYWORD,
        "tags": FieldKind.KEYWORD,
        "create_time": FieldKind.DATETIME,
    },
)


class PassageIndex:
    """Writes passages into the index and asks it.

    Args:
        index: The engine.
        embedder: The model of the vectors.
        sparse: Makes the vectors of words.
    """

    def __init__(self, index: VectorIndex, embedder: Embedder, sparse: SparseEncoder) -> None:
        self._index = index
        self._embedder = embedder
        self._sparse = sparse

    async def ensure(self) -> bool:
        """Makes the collection if it is not there, and returns whether it was missing.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        missing = not await self._index.generations(PASSAGES)
        await self._index.ensure(PASSAGES, self._embedder.model_id, self._embedder.dim)
        return missing

    async def write(self, project_id: str, passages: Sequence[Passage]) -> None:
        """Brings the index up to the given revisions; deleted passages are forgotten.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        gone = [passage.id for passage in passages if passage.deleted]
        if gone:
            await self._index.delete(PASSAGES, project_id, gone)
        kept = [passage for passage in passages if not passage.deleted]
        if not kept:
            return
        chunked = await embed_chunked(self._embedder, [passage.text for passage in kept])
        documents = [
            Document(
                id=passage.id,
                chunks=[
                    IndexedChunk(chunk.vector, self._sparse.document(chunk.text))
                    for chunk in chunks
                ],
                payload={
                    "archive_id": passage.archive_id,
                    "tags": passage.tags,
                    "create_time": passage.create_time,
                },
            )
            for passage, chunks in zip(kept, chunked, strict=True)
        ]
        changed = any(passage.revision > 1 for passage in kept)
        await self._index.upsert(PASSAGES, project_id, documents, replace=changed)

    async def search(self, project_id: str, query: str, within: Filter, limit: int) -> list[Hit]:
        """Returns the best passages by meaning and words, best first.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """
        vector = (await self._embedder.embed([query], "query"))[0]
        return await self._index.query(
            PASSAGES,
            project_id,
            dense=vector,
            sparse=self._sparse.query(query),
            where=_where(within),
            limit=limit,
        )


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
