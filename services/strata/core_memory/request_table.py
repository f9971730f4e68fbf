"""The table of stored responses of core memory, of blocks and of files."""

from __future__ import annotations

from strata.shared.idempotency.request_table import ColumnType, RequestTable

REQUESTS = RequestTable(
    "core_memory.requests", digest_type=ColumnType.BYTES, response_type=ColumnType.BYTES
)
