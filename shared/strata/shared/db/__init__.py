"""PostgreSQL for every service: tenant-bound transactions, page tokens, row-level security."""

from strata.shared.db.batched_deletion import delete_in_batches
from strata.shared.db.connections import DatabaseConnection, StatementResult
from strata.shared.db.database import Database
from strata.shared.db.driver_connection import Row
from strata.shared.db.errors import MissingTenantError
from strata.shared.db.paging import (
    PAGE_BYTES,
    Page,
    decode_page_token,
    encode_page_token,
    page_limit,
    rows_that_fit,
)
from strata.shared.db.policies import (
    grant_columns_sql,
    grant_sql,
    tenant_policy_sql,
    worker_policy_sql,
)
from strata.shared.db.statements import SqlStatement, sql
from strata.shared.db.statistics import Statistics

__all__ = [
    "PAGE_BYTES",
    "Database",
    "DatabaseConnection",
    "MissingTenantError",
    "Page",
    "Row",
    "SqlStatement",
    "StatementResult",
    "Statistics",
    "decode_page_token",
    "delete_in_batches",
    "encode_page_token",
    "grant_columns_sql",
    "grant_sql",
    "page_limit",
    "rows_that_fit",
    "sql",
    "tenant_policy_sql",
    "worker_policy_sql",
]
