"""Helpers of the archival tests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from strata.archival.convert import new_archive, own_archive
from strata.archival.domain.passages import Archive, Inserted, NewPassage, Place
from strata.archival.index import PassageIndex
from strata.archival.indexer import Indexer
from strata.archival.search import PassageSearch
from strata.archival.store import PendingPassages, PostgresArchiveStore, PostgresPassageStore
from strata.shared.context import Caller, RequestContext
from strata.shared.db import Database
from strata.shared.ids import new_id

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MODEL, DIM = "all-minilm-l6-v2-int8", 384


def caller(project: str) -> RequestContext:
    return RequestContext(caller=Caller(new_id("org"), project, "key"))


def archive(name: str) -> Archive:
    return new_archive(name, MODEL, DIM, NOW)


def new_passage(text: str, tags: tuple[str, ...] = (), created: datetime = NOW) -> NewPassage:
    return NewPassage(new_id("passage"), text, len(text.split()), created, tags)


@dataclass
class Stores:
    archives: PostgresArchiveStore
    passages: PostgresPassageStore
    pending: PendingPassages
    database: Database

    async def insert(
        self, agent: str, *texts: str, tags: tuple[str, ...] = (), created: datetime = NOW
    ) -> list[Inserted]:
        await self.archives.prepare(agent)
        return await self.passages.insert(
            Place(agent_id=agent),
            [new_passage(text, tags, created) for text in texts],
            own_archive(agent, MODEL, DIM, NOW),
            "",
        )


@dataclass
class Finder:
    """Stores, an index of its own, and an indexer that runs when it is told to."""

    stores: Stores
    index: PassageIndex
    indexer: Indexer
    search: PassageSearch
