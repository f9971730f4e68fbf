"""One agent's conversation with an index that a test fills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recall_conversations import Writer
from strata.recall.domain.messages import Message
from strata.recall.domain.search import SearchQuery
from strata.recall.search.backlogs import DeletedAgentBacklog, MessageBacklog
from strata.recall.search.index import MESSAGES, MessageIndex
from strata.recall.search.message_search import MessageSearch
from strata.recall.store import PendingMessages, PostgresSearchStore
from strata.shared import context
from strata.shared.clock import SystemClock
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.search.embedding import Embedder
from strata.shared.search.fusion import FLOOR, FusionConfig
from strata.shared.search.indexing.indexer import Indexer
from strata.shared.search.results import SearchResult
from strata.shared.search.vectors import Where
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantConfig, QdrantIndex
from strata.shared.search.vectors.sparse import SparseEncoder
from strata.shared.telemetry import Telemetry
from strata.standalone.vectors import EmbeddedVectors


@dataclass
class Finder:
    """One agent's conversation, and an indexer that runs when a test calls it."""

    writer: Writer
    pending: PendingMessages
    index: MessageIndex
    backlog: MessageBacklog
    indexer: Indexer
    search: MessageSearch
    vectors: QdrantIndex
    telemetry: Telemetry

    @property
    def agent(self) -> str:
        return self.writer.agent

    async def index_all(self) -> None:
        while await self.indexer.index_pending():
            pass

    async def ask(self, text: str, limit: int = 5, **fields: Any) -> SearchResult[Message]:
        return await self.search.search(SearchQuery(self.agent, text, limit, **fields))

    async def ids(self, text: str, limit: int = 5, **fields: Any) -> list[str]:
        return [hit.item.id for hit in (await self.ask(text, limit, **fields)).hits]

    async def indexed(self) -> int:
        where = Where(eq={"agent_id": self.agent})
        return await self.vectors.count(MESSAGES, context.current_project(), where)


async def finder_on(
    engine: EmbeddedVectors,
    embedder: Embedder,
    database: Database,
    worker: Database,
    floor: float = FLOOR,
) -> Finder:
    config = QdrantConfig(fusion=FusionConfig(floor=floor))
    vectors = QdrantIndex(connect(engine.url, engine.api_key), config)
    index = MessageIndex(vectors, embedder, SparseEncoder())
    pending = PendingMessages(database, worker)
    telemetry = Telemetry()
    backlog = MessageBacklog(pending, index, telemetry, batch=8)
    await backlog.ensure()
    writer = Writer(database, new_id("agent"))
    await writer.open()
    return Finder(
        writer,
        pending,
        index,
        backlog,
        Indexer(
            [backlog],
            poll=0.1,
            polled=[DeletedAgentBacklog(pending, index)],
            check_interval_s=0.5,
        ),
        MessageSearch(PostgresSearchStore(database), index, SystemClock()),
        vectors,
        telemetry,
    )
