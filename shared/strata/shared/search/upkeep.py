"""Wires the background tasks of a service's indexes, and their operations for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.indexing.indexer import Backlog, Indexer
from strata.shared.search.reindexing.index_admin import IndexAdmin, ManagedIndex
from strata.shared.search.reindexing.ledger import Ledger
from strata.shared.search.reindexing.reindexer import POLL_FACTOR, Rebuildable, Reindexer
from strata.shared.search.service_settings import SearchingServiceSettings


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
    polled: Sequence[Backlog] = (),
) -> IndexUpkeep:
    """Wires indexer, reindexer and operations.

    Args:
        settings: The settings of the service.
        ledger: The stored generations and rebuilds.
        models: The configured models.
        backlogs: The texts to index, in the order of processing.
        rebuilds: What can be rebuilt, by slot.
        indexes: What operators see and rebuild, by its name on the wire.
        polled: See `Indexer`.
    """
    indexer = Indexer(backlogs, poll=settings.index_poll_s, polled=polled)
    driver = Reindexer(ledger, rebuilds, settings.reindex_config, indexer.quiet)
    reindexer = Indexer([driver], poll=settings.index_poll_s * POLL_FACTOR)
    admin = IndexAdmin(
        ledger, models, indexes, allowed=settings.reindex_by_key, wake=reindexer.wake
    )
    return IndexUpkeep(indexer, reindexer, admin)
