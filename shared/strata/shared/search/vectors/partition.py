"""The vector index of one partition: its own collections, in an engine that partitions share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strata.shared.search.fusion import Hit
from strata.shared.search.vectors.index import (
    Collection,
    IndexedDocument,
    Preference,
    SparseVector,
    StartGate,
    VectorIndex,
    Where,
)


class PartitionIndex:
    """A `VectorIndex` whose collections have other names in the engine.

    The generations of a collection are recorded in the database of the partition, whose rebuilds
    create, switch and drop them. So no two partitions can share a collection.

    Args:
        index: The index of the engine; it is closed by its owner.
        partition: Name of the partition.
    """

    def __init__(self, index: VectorIndex, partition: str) -> None:
        self._index = index
        self._prefix = f"partition-{partition}-"

    async def ensure(
        self, collection: Collection, model_id: str, dim: int, *, generation: str | None = None
    ) -> str:
        """See `VectorIndex.ensure`."""
        name = await self._index.ensure(
            self._own(collection), model_id, dim, generation=self._in_engine(generation)
        )
        return name.removeprefix(self._prefix)

    async def serving(self, collection: Collection) -> str | None:
        """See `VectorIndex.serving`."""
        name = await self._index.serving(self._own(collection))
        return None if name is None else name.removeprefix(self._prefix)

    async def generations(self, collection: Collection) -> list[str]:
        """See `VectorIndex.generations`."""
        names = await self._index.generations(self._own(collection))
        return [name.removeprefix(self._prefix) for name in names]

    async def switch(self, collection: Collection, generation: str) -> None:
        """See `VectorIndex.switch`."""
        await self._index.switch(self._own(collection), f"{self._prefix}{generation}")

    async def drop(self, collection: Collection, generation: str) -> None:
        """See `VectorIndex.drop`."""
        await self._index.drop(self._own(collection), f"{self._prefix}{generation}")

    async def upsert(
        self,
        collection: Collection,
        project_id: str,
        documents: Sequence[IndexedDocument],
        *,
        generation: str | None = None,
        replace: bool = False,
    ) -> None:
        """See `VectorIndex.upsert`."""
        await self._index.upsert(
            self._own(collection),
            project_id,
            documents,
            generation=self._in_engine(generation),
            replace=replace,
        )

    async def query(
        self,
        collection: Collection,
        project_id: str,
        *,
        dense: Sequence[float] | None = None,
        sparse: SparseVector | None = None,
        where: Where | None = None,
        prefer: Sequence[Preference] = (),
        limit: int = 10,
        generation: str | None = None,
        unrelated: float | None = None,
        dense_weight: float = 1.0,
        floor_share: float = 1.0,
        newest_share: float = 0.0,
        uncut: bool = False,
        weak: bool = False,
        after: StartGate | None = None,
    ) -> list[Hit]:
        """See `VectorIndex.query`."""
        return await self._index.query(
            self._own(collection),
            project_id,
            dense=dense,
            sparse=sparse,
            where=where,
            prefer=prefer,
            limit=limit,
            generation=self._in_engine(generation),
            unrelated=unrelated,
            dense_weight=dense_weight,
            floor_share=floor_share,
            newest_share=newest_share,
            uncut=uncut,
            weak=weak,
            after=after,
        )

    async def delete(
        self,
        collection: Collection,
        project_id: str,
        document_ids: Sequence[str],
        *,
        generation: str | None = None,
    ) -> None:
        """See `VectorIndex.delete`."""
        await self._index.delete(
            self._own(collection), project_id, document_ids, generation=self._in_engine(generation)
        )

    async def delete_where(
        self,
        collection: Collection,
        project_id: str,
        where: Where,
        *,
        generation: str | None = None,
    ) -> None:
        """See `VectorIndex.delete_where`."""
        await self._index.delete_where(
            self._own(collection), project_id, where, generation=self._in_engine(generation)
        )

    async def count(
        self,
        collection: Collection,
        project_id: str,
        where: Where | None = None,
        *,
        generation: str | None = None,
    ) -> int:
        """See `VectorIndex.count`."""
        return await self._index.count(
            self._own(collection), project_id, where, generation=self._in_engine(generation)
        )

    async def is_empty(self, collection: Collection, generation: str) -> bool:
        """See `VectorIndex.is_empty`."""
        return await self._index.is_empty(self._own(collection), f"{self._prefix}{generation}")

    async def check(self) -> None:
        """See `VectorIndex.check`."""
        await self._index.check()

    async def close(self) -> None:
        """Does nothing: other partitions use the index of the engine, too."""

    def _own(self, collection: Collection) -> Collection:
        return replace(collection, name=f"{self._prefix}{collection.name}")

    def _in_engine(self, generation: str | None) -> str | None:
        return None if generation is None else f"{self._prefix}{generation}"
