"""The table of stored responses of the agent loop."""

from __future__ import annotations

from strata.shared.idempotency.request_table import ColumnType, RequestTable

REQUESTS = RequestTable(
    "agent_loop.requests",
    digest="payload_hash",
    response="answer",
    response_type=ColumnType.JSON,
    subject="subject_id",
)
