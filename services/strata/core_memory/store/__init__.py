"""Blocks in PostgreSQL."""

from strata.core_memory.store.blocks import PostgresBlockStore
from strata.core_memory.store.requests import RequestLog

__all__ = ["PostgresBlockStore", "RequestLog"]
