"""The indexes of the archival service, with rebuild steps that the test runs itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from archival_stores import NOW, Stores
from contract.search.embedding.conftest import EmbeddingServer
from strata.api.common.v1 import search_pb2 as pb
from strata.archival.domain.search import Search
from strata.archival.search.chunk_search import FileChunkSearch
from strata.archival.search.index import PASSAGES
from strata.archival.search.indexes import Indexes, wire
from strata.archival.search.passage_search import PassageSearch
from strata.archival.search.rebuilds import ArchiveModels
from strata.archival.settings import ArchivalSettings
from strata.shared.clock import ManualClock
from strata.shared.ids import new_id
from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.reindexing.state import ReindexConfig
from strata.shared.search.vectors import Collection, Where
from strata.shared.search.vectors.qdrant import QdrantIndex

SUBJECTS = ("otter", "violin", "glacier", "sourdough", "telescope", "bicycle", "lantern", "orchid")
MORE = (
    "A walrus sleeps on the ice.",
    "A narwhal dives below the ice.",
    "An aunt of the walrus owns a bicycle.",
    "Somebody has seen a telescope.",
)
TEXTS = [f"The {subject} number {n} belongs to aunt {n}." for n, subject in enumerate(SUBJECTS)]


@dataclass
class RebuiltIndexes:
    """The indexes of a service, whose background work runs when a test calls it."""

    stores: Stores
    settings: ArchivalSettings
    reindexing: ReindexConfig
    models: EmbeddingModels
    vectors: QdrantIndex
    indexes: Indexes
    endpoint: EmbeddingServer
    project: str
    agent: str = ""

    def __post_init__(self) -> None:
        self.agent = self.agent or new_id("agent")
        self.search = PassageSearch(self.stores.passages, self.indexes.passages, ManualClock(NOW))
        self.file_search = FileChunkSearch(self.stores.chunks, self.indexes.chunks)
        self.archives = ArchiveModels(
            self.indexes.assignments, self.indexes.archives, self.indexes.passages, lambda: None
        )

    async def again(self, **reindex: Any) -> RebuiltIndexes:
        """Returns the same service as in another process, with another rebuild configuration."""
        return await replace(self, reindexing=replace(self.reindexing, **reindex))._rewired()

    async def again_with_settings(self, **settings: Any) -> RebuiltIndexes:
        """Returns the same service as in another process, with other settings."""
        return await replace(self, settings=self.settings.model_copy(update=settings))._rewired()

    async def _rewired(self) -> RebuiltIndexes:
        made = await wire(
            self.settings,
            self.models,
            self.vectors,
            self.stores.database,
            self.stores.worker,
            reindex=self.reindexing,
        )
        return replace(self, indexes=made)

    async def insert(self, *texts: str) -> list[str]:
        stored = await self.stores.insert(self.agent, *texts)
        return [stored_passage.passage.id for stored_passage in stored]

    async def index_all(self) -> None:
        while await self.indexes.indexer.index_pending():
            pass

    async def step(self) -> bool:
        return await self.indexes.reindexer.index_pending()

    async def reindex(self, name: str = "passages") -> pb.Reindex:
        """Runs all pending work and returns the newest rebuild."""
        while await self.step():
            pass
        return (await self.indexes.admin.state(name)).reindex

    async def find(self, words: str, limit: int = 3, **conditions: Any) -> list[str]:
        search = Search(words, limit, agent_id=self.agent, **conditions)
        hits = (await self.search.search(search)).hits
        assert all(hit.mode != "fts" for hit in hits[:1]), "the index was not searched"
        return [hit.item.text for hit in hits]

    async def held(self, generation: str, collection: Collection = PASSAGES) -> int:
        return await self.vectors.count(collection, self.project, Where(), generation=generation)

    async def generations(self) -> list[str]:
        return await self.vectors.generations(PASSAGES)
