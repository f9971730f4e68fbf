"""Windows and messages in PostgreSQL."""

from strata.recall.store.messages import PostgresMessageStore
from strata.recall.store.windows import PostgresWindowStore

__all__ = ["PostgresMessageStore", "PostgresWindowStore"]
