"""Ingestions of files are also recorded when a folder is attached, with who attached it.

Revision ID: 0024
"""

from alembic import op

from strata.shared.db import grant_columns_sql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_TABLE = "gateway.open_ingestions"


def upgrade() -> None:
    """Adds the columns; they are NULL if the ingestion follows a run, as in earlier releases."""
    op.execute(f"ALTER TABLE {_TABLE} ADD COLUMN principal text, ADD COLUMN scopes text[]")
    columns = ["principal", "scopes"]
    op.execute(grant_columns_sql("SELECT", columns, _TABLE, "strata_gateway_worker"))


def downgrade() -> None:
    """Drops the columns and the ingestions that need them."""
    op.execute(f"DELETE FROM {_TABLE} WHERE principal IS NOT NULL")
    op.execute(f"ALTER TABLE {_TABLE} DROP COLUMN principal, DROP COLUMN scopes")
