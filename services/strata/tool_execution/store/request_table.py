"""The table of stored responses of tool execution."""

from __future__ import annotations

from typing import Any

from strata.shared.context import current_project
from strata.shared.db import DatabaseConnection, sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.idempotency.request_table import (
    ANY_SUBJECT,
    ClaimedRequestTable,
    ColumnType,
    TableLayout,
)
from strata.tool_execution.domain.registry import tool_missing

_DELETED = "deleted: "
# Only responses that may hold the tool are searched for its id.
_PURGE = sql(
    f"""
    UPDATE tool_execution.requests SET response = CAST(:deleted AS text)
    WHERE project_id = :project AND (
        tool_id = :tool
        OR tool_id = '{ANY_SUBJECT}' AND position(CAST(:tool AS text) IN response) > 0)
    """
)


class ToolRequests(ClaimedRequestTable):
    """The stored responses, of which those that hold a deleted tool are destroyed with it."""

    def __init__(self) -> None:
        super().__init__("tool_execution.requests", TableLayout(ColumnType.TEXT, subject="tool_id"))

    def replayed(self, request: RequestKey, row: Any) -> Any:
        """See `RequestTable.replayed`.

        Raises:
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
            NotFoundError: ``TOOL_NOT_FOUND``: the tool of the response was deleted.
        """
        response = super().replayed(request, row)
        if response is not None and response.startswith(_DELETED):
            raise tool_missing(response.removeprefix(_DELETED))
        return response

    async def purge(self, connection: DatabaseConnection, tool_id: str) -> None:
        """Destroys the responses that hold a tool; in the transaction that deletes it, after it."""
        values = {
            "project": current_project(),
            "tool": tool_id,
            "deleted": f"{_DELETED}{tool_id}",
        }
        await connection.execute(_PURGE, values)


REQUESTS = ToolRequests()
