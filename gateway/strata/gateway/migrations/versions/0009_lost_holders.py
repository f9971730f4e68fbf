"""Counts how many gateways in a row died while they executed a run.

Revision ID: 0009
"""

from alembic import op

from strata.shared.db import grant_columns_sql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the count, which starts at zero for active runs."""
    op.execute("ALTER TABLE gateway.runs ADD COLUMN lost_holders integer NOT NULL DEFAULT 0")
    for privilege in ("SELECT", "UPDATE"):
        op.execute(
            grant_columns_sql(privilege, ["lost_holders"], "gateway.runs", "strata_gateway_worker")
        )


def downgrade() -> None:
    """Drops the count; only the deadline of a run bounds how often it is taken over."""
    op.execute("ALTER TABLE gateway.runs DROP COLUMN lost_holders")
