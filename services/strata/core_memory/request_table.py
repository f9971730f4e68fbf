"""The table of stored responses of core memory, of blocks and of files."""

from __future__ import annotations

from typing import Any

from strata.core_memory.domain.blocks import block_not_found
from strata.shared.context import current_project
from strata.shared.db import DatabaseConnection, sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.idempotency.request_table import (
    ANY_SUBJECT,
    ColumnType,
    RecordedRequestTable,
    TableLayout,
)

# A field that no response has, of type string, so that a release before parses it as well.
_PURGED = b"\xfa\xff\xff\xff\x0f"
# Only responses that may hold the block are searched for its id.
_PURGE = sql(
    f"""
    UPDATE core_memory.requests SET response = CAST(:purged AS bytea)
    WHERE project_id = :project AND block_id IN (:block, '{ANY_SUBJECT}')
      AND position(CAST(:bytes AS bytea) IN response) > 0
    """
)


class CoreMemoryRequests(RecordedRequestTable):
    """The stored responses, of which those that hold a purged block are destroyed with it."""

    def __init__(self) -> None:
        super().__init__(
            "core_memory.requests",
            TableLayout(ColumnType.BYTES, digest_type=ColumnType.BYTES, subject="block_id"),
        )

    def replayed(self, request: RequestKey, row: Any) -> Any:
        """See `RequestTable.replayed`.

        Raises:
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
            NotFoundError: ``BLOCK_NOT_FOUND``: a block of the response was purged.
        """
        response = super().replayed(request, row)
        if response is not None and response.startswith(_PURGED):
            raise block_not_found(response[len(_PURGED) + 1 :].decode())
        return response

    async def purge(self, connection: DatabaseConnection, block_id: str) -> None:
        """Destroys the responses that hold a block; in the transaction that purges it, after it."""
        values = {
            "project": current_project(),
            "block": block_id,
            "bytes": block_id.encode(),
            "purged": _PURGED + bytes([len(block_id)]) + block_id.encode(),
        }
        await connection.execute(_PURGE, values)


REQUESTS = CoreMemoryRequests()
