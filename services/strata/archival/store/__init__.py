"""Stores archives, passages and chunks of files in PostgreSQL."""

from strata.archival.store.archives import PostgresArchiveStore
from strata.archival.store.chunk_queue import ChunkQueue
from strata.archival.store.chunks import PostgresFileChunkStore
from strata.archival.store.destruction import Expiry
from strata.archival.store.history import PostgresPassageHistory
from strata.archival.store.passages import PostgresPassageStore
from strata.archival.store.pending_passages import PendingPassages
from strata.archival.store.receipts import RECEIPTS

__all__ = [
    "RECEIPTS",
    "ChunkQueue",
    "Expiry",
    "PendingPassages",
    "PostgresArchiveStore",
    "PostgresFileChunkStore",
    "PostgresPassageHistory",
    "PostgresPassageStore",
]
