"""Wires the background tasks of a service's indexes, and their operations for operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from strata.shared.foreground_work import CALLS_OF_RUNS
from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.indexing.indexer import Backlog, Indexer
from strata.shared.search.reindexing.index_admin import IndexAdmin, ManagedIndex
from strata.shared.search.reindexing.ledger import Ledger
from strata.shared.search.reindexing.reindexer import POLL_FACTOR, Rebuildable, Reindexer
from strata.shared.search.reindexing.state import ReindexConfig
from strata.shared.search.reindexing.superseded_model import SupersededModel
from strata.shared.search.service_settings import SearchingServiceSettings

INDEX_POLL_S = 1.0
"""Pause between polls for texts of other replicas, longer while there are none; texts of this one
wake the indexer."""


@dataclass(frozen=True, slots=True)
class IndexUpkeep:
    """The parts that keep the indexes of a service up to date.

    Attributes:
        indexer: Writes pending texts.
        reindexer: Runs rebuilds, concurrently with the indexer.
        admin: The operations for operators.
    """

    indexer: Indexer
    reindexer: Indexer
    admin: IndexAdmin


def index_upkeep(
    settings: SearchingServiceSettings,
    ledger: Ledger,
    models: EmbeddingModels,
    backlogs: Sequence[Backlog],
    rebuilds: Mapping[str, Rebuildable],
    indexes: Mapping[str, ManagedIndex],
    *,
    find_work: Callable[[], Awaitable[object]],
    polled: Sequence[Backlog] = (),
    reindex: ReindexConfig | None = None,
) -> IndexUpkeep:
    """Wires indexer, reindexer and operations.

    Args:
        settings: The settings of the service.
        ledger: The stored generations and rebuilds.
        models: The configured models.
        backlogs: The texts to index, in the order of processing.
        rebuilds: The indexes that can be rebuilt, by slot.
        indexes: The indexes that operators list and rebuild, by name on the wire.
        find_work: See `Indexer`.
        polled: See `Indexer`.
        reindex: Configuration of rebuilds; by default with the grace period of the settings.
    """
    indexer = Indexer(
        backlogs,
        poll=INDEX_POLL_S,
        polled=polled,
        rarely_when_idle=True,
        find_work=find_work,
        foreground=CALLS_OF_RUNS,
    )
    reindex = reindex or ReindexConfig(settings.reindex_grace_s)
    driver = Reindexer(ledger, rebuilds, reindex, indexer.quiet)
    upgrade = SupersededModel(ledger, models, indexes)
    reindexer = Indexer(
        [upgrade, driver],
        poll=INDEX_POLL_S * POLL_FACTOR,
        rarely_when_idle=True,
        foreground=CALLS_OF_RUNS,
    )
    admin = IndexAdmin(
        ledger,
        models,
        indexes,
        allowed=settings.reindex_by_key,
        wake=reindexer.wake,
        partition=settings.partition,
    )
    return IndexUpkeep(indexer, reindexer, admin)
