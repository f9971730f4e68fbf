"""Stores windows and messages in PostgreSQL."""

from strata.recall.store.context_windows import PostgresWindowStore
from strata.recall.store.conversation_forks import PostgresForkStore
from strata.recall.store.images import PostgresImageStore
from strata.recall.store.message_search import PostgresSearchStore
from strata.recall.store.messages import PostgresMessageStore
from strata.recall.store.pending_messages import PendingMessages
from strata.recall.store.pins import PostgresPinStore
from strata.recall.store.retention import (
    DeletedMessages,
    PostgresOldMessages,
    PostgresRetentionSettings,
)

__all__ = [
    "DeletedMessages",
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
