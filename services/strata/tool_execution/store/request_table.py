"""The table of stored responses of tool execution."""

from __future__ import annotations

from strata.shared.idempotency.request_table import ColumnType, RequestTable

REQUESTS = RequestTable("tool_execution.requests", response_type=ColumnType.TEXT)
