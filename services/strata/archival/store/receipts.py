"""The table of stored responses of archival memory."""

from __future__ import annotations

from strata.shared.idempotency.request_table import ColumnType, RequestTable

RECEIPTS = RequestTable("archival.receipts", response_type=ColumnType.JSON)
