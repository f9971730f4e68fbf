"""Windows and messages in PostgreSQL."""

from strata.recall.store.forks import PostgresForkStore
from strata.recall.store.images import PostgresImageStore
from strata.recall.store.messages import PostgresMessageStore
from strata.recall.store.pending import PendingMessages
from strata.recall.store.pins import PostgresPinStore
from strata.recall.store.retention import (
    ForgottenMessages,
    PostgresOldMessages,
    PostgresRetentionSettings,
)
from strata.recall.store.searching import PostgresSearchStore
from strata.recall.store.windows import PostgresWindowStore

__all__ = [
    "ForgottenMessages",
    "PendingMessages",
    "PostgresForkStore",
    "PostgresImageStore",
    "PostgresMessageStore",
    "PostgresOldMessages",
    "PostgresPinStore",
    "PostgresRetentionSettings",
    "PostgresSearchStore",
    "PostgresWindowStore",
]
