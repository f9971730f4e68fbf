"""The table of stored responses of archival memory."""

from __future__ import annotations

from strata.shared.idempotency.request_table import (
    ClaimedRequestTable,
    ColumnType,
    TableLayout,
)

RECEIPTS = ClaimedRequestTable("archival.receipts", TableLayout(ColumnType.JSON))
