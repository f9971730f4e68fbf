"""Archives and passages in PostgreSQL."""

from strata.archival.store.archives import PostgresArchiveStore
from strata.archival.store.passages import PostgresPassageStore
from strata.archival.store.pending import PendingPassages

__all__ = ["PendingPassages", "PostgresArchiveStore", "PostgresPassageStore"]
