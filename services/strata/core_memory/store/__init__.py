"""Blocks in PostgreSQL."""

from strata.core_memory.store.blocks import PostgresBlockStore

__all__ = ["PostgresBlockStore"]
