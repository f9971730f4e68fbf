"""An index of texts over one collection of the vector index; embeds texts and queries.

`Routes` name the generations of the collection to search and to write. A query is embedded with
the model of the generation that it searches.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strata.protocol.errors import StrataError, UnavailableError
from strata.shared.context import background_work_of
from strata.shared.search.embedding import Embedder, EmbeddingModels, embed_chunked
from strata.shared.search.fusion import Hit, floor_share
from strata.shared.search.indexing.generations import FixedRoutes, Routes, Serving
from strata.shared.search.vectors.index import (
    Collection,
    IndexedChunk,
    IndexedDocument,
    PayloadValue,
    Preference,
    StartGate,
    VectorIndex,
    Where,
)
from strata.shared.search.vectors.sparse import SparseEncoder
from strata.shared.search.vectors.stop_words import without_stop_words

CHUNK_TOKENS = 128
"""Tokens of a chunk; the vector of a longer chunk represents single facts too weakly.

On seven long chats 128 found more than 256 and as much as 64, which takes twice the space.
"""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A text to index.

    Attributes:
        id: Unique in project and collection.
        text: The text.
        payload: Fields to filter on.
        vector: A vector of the whole text from the client; used for generations of its model.
        vector_model: Id of the model of that vector.
    """

    id: str
    text: str
    payload: Mapping[str, PayloadValue]
    vector: Sequence[float] | None = None
    vector_model: str = ""


class TextIndex:
    """One collection of texts that can be searched by meaning and by words.

    Args:
        index: The vector index.
        models: The embedding models, or a single model.
        sparse: Makes the sparse vectors.
        collection: The collection.
        chunk_tokens: Maximum number of tokens of a chunk; None for as many as the model reads.
        routes: The generations to search and to write; None for the default model's generation.
    """

    def __init__(
        self,
        index: VectorIndex,
        models: EmbeddingModels | Embedder,
        sparse: SparseEncoder,
        collection: Collection,
        *,
        chunk_tokens: int | None = None,
        routes: Routes | None = None,
    ) -> None:
        self._index = index
        self._models = as_models(models)
        self._sparse = sparse
        self._chunk_tokens = chunk_tokens
        self._ready: set[str] = set()
        self.collection = collection
        self.routes = routes or FixedRoutes(collection, self._models)

    async def is_missing(self) -> bool:
        """Returns whether the serving generation is missing.

        Raises:
            UnavailableError: Database or engine cannot be reached.
        """
        return not await self.has(await self.routes.serving(fresh=True))

    async def is_empty(self) -> bool:
        """Returns whether the serving generation, which must exist, holds nothing.

        Raises:
            UnavailableError: Database or engine cannot be reached.
        """
        return await self.holds_nothing(await self.routes.serving(fresh=True))

    async def holds_nothing(self, generation: Serving) -> bool:
        """Returns whether a generation, which must exist, holds nothing.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        return await self._index.is_empty(self.collection, generation.generation)

    async def has(self, generation: Serving) -> bool:
        """Returns whether a generation exists.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        return generation.generation in await self._index.generations(self.collection)

    async def ensure(self) -> None:
        """Creates the serving generation if it is missing, and points the alias at it.

        Raises:
            UnavailableError: Database or engine cannot be reached.
        """
        serving = (await self.routes.written())[0]  # also stores it, if it was not stored
        await self.make(serving)
        if await self._index.serving(self.collection) != serving.generation:
            await self._index.switch(self.collection, serving.generation)

    async def make(self, generation: Serving) -> None:
        """Creates a generation if it does not exist.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        await self._index.ensure(
            self.collection, generation.model, generation.dim, generation=generation.generation
        )
        self._ready.add(generation.generation)

    async def prepare(self, generation: Serving) -> None:
        """Creates a generation unless it is known to exist.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        if generation.generation not in self._ready:
            await self.make(generation)

    async def drop(self, generation: Serving) -> None:
        """Deletes a generation that does not serve; no error if it does not exist.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        self._ready.discard(generation.generation)
        await self._index.drop(self.collection, generation.generation)

    async def put(
        self,
        project_id: str,
        entries: Sequence[IndexEntry],
        *,
        replace: bool,
        into: Sequence[Serving] | None = None,
    ) -> None:
        """Stores texts in all generations to write, the serving one first.

        A generation whose model is no longer configured is skipped, if there is another one.

        Args:
            project_id: The tenant.
            entries: The texts; read them before the call.
            replace: Whether some texts may be stored already with more chunks.
            into: The generations; None for the generations of the routes.

        Raises:
            UnavailableError: The engine or a model cannot be reached.
        """
        targets = await self._written(into)
        configured = [target for target in targets if target.model in self._models.ids]
        for target in configured or targets:
            with background_work_of(project_id):
                documents = await self._documents(entries, target)
            try:
                await self._index.upsert(
                    self.collection,
                    project_id,
                    documents,
                    generation=target.generation,
                    replace=replace,
                )
            except UnavailableError:
                self._ready.discard(target.generation)  # it may have been lost
                raise

    async def remove(
        self, project_id: str, ids: Sequence[str], *, within: Sequence[Serving] | None = None
    ) -> None:
        """Deletes texts by id.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        for target in await self._written(within):
            await self._index.delete(self.collection, project_id, ids, generation=target.generation)

    async def remove_where(
        self, project_id: str, where: Where, *, within: Sequence[Serving] | None = None
    ) -> None:
        """Deletes texts by their payload.

        Raises:
            UnavailableError: The engine cannot be reached.
        """
        for target in await self._written(within):
            await self._index.delete_where(
                self.collection, project_id, where, generation=target.generation
            )

    async def search(
        self,
        project_id: str,
        query: str,
        where: Where,
        limit: int,
        *,
        wordings: Sequence[str] = (),
        prefer: Sequence[Preference] = (),
        newest_share: float = 0.0,
        words: bool = True,
        within: Serving | None = None,
        uncut: bool = False,
        weak: bool = False,
        after: StartGate | None = None,
    ) -> list[Hit]:
        """Returns the best texts by meaning and words, best first.

        Args:
            project_id: The tenant.
            query: The query.
            where: Conditions, applied before the limit.
            limit: Maximum number of texts to return.
            wordings: The query in other words: its vector is the mean of the vectors of all.
            prefer: Texts to rank higher.
            newest_share: Part of the bonus for new texts; see `fuse`.
            words: False to search by meaning alone.
            within: The generation to search; None for the serving one.
            uncut: Return all retrieved texts, to be merged with other hits.
            weak: Also return texts that are unrelated to the query, marked as weak.
            after: See `VectorIndex.query`.

        Raises:
            UnavailableError: The engine or the model cannot be reached.
        """

        async def ask(serving: Serving) -> list[Hit]:
            embedder = await self._models.get(serving.model)
            # The vectors of all unknown words are similar to each other.
            known_share = _known_share(embedder, query)
            vector = None
            if known_share:
                vector = _mean(await embedder.embed([query, *wordings], "query"))
            if vector is None and not words:
                return []
            return await self._index.query(
                self.collection,
                project_id,
                dense=vector,
                sparse=self._sparse.query(query) if words else None,
                where=where,
                prefer=prefer,
                limit=limit,
                generation=serving.generation,
                unrelated=self._models.info(serving.model).unrelated,
                dense_weight=known_share,
                floor_share=floor_share(query),
                newest_share=newest_share,
                uncut=uncut,
                weak=weak,
                after=after,
            )

        serving = within or await self.routes.serving()
        try:
            return await ask(serving)
        except UnavailableError as error:
            if within is not None or error.metadata.get("cause") != "collection_missing":
                raise
            # The generation may have been replaced and dropped since the routes were read.
            now = await self.routes.serving(fresh=True)
            if now == serving:
                raise
        return await ask(now)

    async def has_unknown_words(self, query: str, *, within: Serving | None = None) -> bool:
        """Returns whether the model does not know a word of a query, so the database must search.

        Returns False if the model or its route cannot be reached, because the search then falls
        back to the database anyway.

        Args:
            query: The query.
            within: The generation with the model; None for the serving one.
        """
        try:
            serving = within or await self.routes.serving()
            embedder = await self._models.get(serving.model)
        except StrataError:
            return False
        return _known_share(embedder, query) < 1

    async def _written(self, generations: Sequence[Serving] | None) -> Sequence[Serving]:
        if generations is not None:
            return generations
        # `ensure` creates the serving generation, after all texts were marked as waiting for it.
        serving, *others = await self.routes.written()
        for other in others:
            await self.prepare(other)
        return [serving, *others]

    async def _documents(
        self, entries: Sequence[IndexEntry], target: Serving
    ) -> list[IndexedDocument]:
        parts: dict[str, list[tuple[str, Sequence[float]]]] = {
            entry.id: [(entry.text, entry.vector)]
            for entry in entries
            if entry.vector is not None and entry.vector_model == target.model
        }
        rest = [entry for entry in entries if entry.id not in parts]
        if rest:
            embedder = await self._models.get(target.model)
            texts = [entry.text for entry in rest]
            chunked = await embed_chunked(embedder, texts, chunk_tokens=self._chunk_tokens)
            for entry, chunks in zip(rest, chunked, strict=True):
                parts[entry.id] = [(chunk.text, chunk.vector) for chunk in chunks]

        def documents() -> list[IndexedDocument]:
            return [
                IndexedDocument(
                    entry.id,
                    [
                        IndexedChunk(vector, self._sparse.document(text))
                        for text, vector in parts[entry.id]
                    ],
                    entry.payload,
                )
                for entry in entries
            ]

        # In a thread: a batch of long texts has thousands of chunks and would block the event loop.
        return await asyncio.to_thread(documents)


def _known_share(embedder: Embedder, query: str) -> float:
    """Returns the share of a query's words, without stop words, that the model knows.

    "is she the zzzqqq" has the vector of "is she", which is similar to every text about a
    woman.
    """
    return embedder.known_share(without_stop_words(query))


def _mean(vectors: Sequence[Sequence[float]]) -> Sequence[float]:
    """Returns the mean of vectors, with unit length if there are several."""
    if len(vectors) == 1:
        return vectors[0]
    total = [math.fsum(column) for column in zip(*vectors, strict=True)]
    length = math.hypot(*total)
    return [value / length for value in total] if length else vectors[0]


def as_models(models: EmbeddingModels | Embedder) -> EmbeddingModels:
    """Returns the models; a single model becomes a collection of one."""
    return models if isinstance(models, EmbeddingModels) else EmbeddingModels.of(models)
