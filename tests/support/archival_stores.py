"""The stores of archival over one database, their indexes, and passages for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from strata.archival.convert.archives import new_archive, own_archive
from strata.archival.domain.chunks import FileChunk, FoundChunk
from strata.archival.domain.near_duplicates import signature_of
from strata.archival.domain.passages import (
    Archive,
    ArchiveRef,
    InsertedPassage,
    NewPassage,
    NewText,
    Origin,
    Passage,
    SuppliedVector,
)
from strata.archival.domain.search import Search
from strata.archival.search.chunk_search import FileChunkSearch
from strata.archival.search.index import ChunkIndex, PassageIndex
from strata.archival.search.passage_search import PassageSearch
from strata.archival.store import (
    ChunkQueue,
    PendingPassages,
    PostgresArchiveStore,
    PostgresFileChunkStore,
    PostgresPassageHistory,
    PostgresPassageStore,
)
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.provenance import taint_of
from strata.shared.search.embedding.base import MULTILINGUAL_DIM, MULTILINGUAL_MODEL
from strata.shared.search.indexing.indexer import Indexer
from strata.shared.search.results import SearchHit, SearchResult

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CHUNK_BATCH = 4
MODEL, DIM = MULTILINGUAL_MODEL, MULTILINGUAL_DIM


def archive(name: str) -> Archive:
    return new_archive(name, MODEL, DIM, NOW)


def new_text(text: str) -> NewText:
    return NewText(text, len(text.split()), signature_of(text))


def new_passage(
    text: str,
    tags: tuple[str, ...] = (),
    created: datetime = NOW,
    *,
    vector: SuppliedVector | None = None,
) -> NewPassage:
    return NewPassage(
        new_id("passage"), new_text(text), created, NOW, tags, principal="key", vector=vector
    )


def taint_of_tags(passages: Iterable[Passage]) -> dict[str, tuple[str, ...]]:
    """Returns the labels of the tags that only labelled passages have, from all passages."""
    labels: dict[str, list[tuple[str, ...]]] = {}
    for passage in passages:
        for tag in passage.tags:
            labels.setdefault(tag, []).append(passage.origin.taint)
    return {tag: taint_of(*taints) for tag, taints in labels.items() if all(taints)}


def new_chunks(*texts: str) -> list[FileChunk]:
    return [FileChunk(n, text, n * 10 + 1, n * 10 + 10) for n, text in enumerate(texts)]


@dataclass
class Stores:
    archives: PostgresArchiveStore
    passages: PostgresPassageStore
    history: PostgresPassageHistory
    pending: PendingPassages
    chunks: PostgresFileChunkStore
    queue: ChunkQueue
    database: Database
    worker: Database

    @classmethod
    def opened(cls, urls: Any) -> Stores:
        """Returns the stores on a database, with their own connections."""
        database, worker = Database(urls.service_url), Database(urls.worker_url)
        return cls(
            PostgresArchiveStore(database),
            PostgresPassageStore(database),
            PostgresPassageHistory(database),
            PendingPassages(database, worker),
            PostgresFileChunkStore(database),
            ChunkQueue(database, worker),
            database,
            worker,
        )

    async def close(self) -> None:
        await self.database.close()
        await self.worker.close()

    async def insert(
        self,
        agent: str,
        *texts: str,
        tags: tuple[str, ...] = (),
        created: datetime = NOW,
        stored: datetime = NOW,
        writer: str = "",
    ) -> list[InsertedPassage]:
        """Stores texts in the archive of an agent; `writer` is the agent that wrote them."""
        await self.archives.prepare(agent)
        return await self.passages.insert(
            ArchiveRef(agent_id=agent),
            [
                replace(
                    new_passage(text, tags, created),
                    store_time=stored,
                    origin=Origin(agent_id=writer),
                )
                for text in texts
            ],
            own_archive(agent, MODEL, DIM, NOW),
        )

    async def index_file(self, folder: str, file: str, *texts: str, digest: str = "") -> str:
        set_id = await self.chunks.begin(folder, file)
        await self.chunks.add(set_id, new_chunks(*texts))
        await self.chunks.serve(set_id, len(texts), digest or set_id)
        return set_id

    async def progress(self, file: str) -> tuple[int, int] | None:
        counts = await self.chunks.progress([file])
        return (counts[0].indexed_count, counts[0].chunk_count) if counts else None


@dataclass
class Finder:
    """Stores, indexes of its own, and an indexer that runs when a test calls it."""

    stores: Stores
    index: PassageIndex
    chunk_index: ChunkIndex
    indexer: Indexer
    search: PassageSearch
    chunk_search: FileChunkSearch

    async def index_all(self) -> None:
        while await self.indexer.index_pending():
            pass

    async def find_chunks(
        self, folders: Sequence[str], query: str, limit: int = 5
    ) -> list[FoundChunk]:
        return list((await self.chunk_search.search(folders, query, limit)).hits)


async def ask(finder: Finder, agent: str, query: str, **fields: Any) -> SearchResult[Passage]:
    return await finder.search.search(
        Search(query=query, top_k=fields.pop("top_k", 5), agent_id=agent, **fields)
    )


def texts(hits: Iterable[SearchHit[Passage]]) -> list[str]:
    return [hit.item.text for hit in hits]
