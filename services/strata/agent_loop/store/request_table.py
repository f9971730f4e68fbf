"""The table of stored responses of the agent loop."""

from __future__ import annotations

from strata.shared.idempotency.request_table import (
    ColumnType,
    RecordedRequestTable,
    TableLayout,
)

REQUESTS = RecordedRequestTable(
    "agent_loop.requests",
    TableLayout(ColumnType.JSON, response="answer", digest="payload_hash", subject="subject_id"),
)
