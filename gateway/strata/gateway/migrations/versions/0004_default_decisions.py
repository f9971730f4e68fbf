"""Adds requests for approval that are approved if nobody answers.

Revision ID: 0004
"""

from alembic import op

from strata.shared.db import grant_columns_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the default decision; requests that wait already are denied by default, as before."""
    op.execute(
        "ALTER TABLE gateway.approvals ADD COLUMN default_approve boolean NOT NULL DEFAULT false"
    )
    # Every gateway looks here once a second, over all projects.
    op.execute(
        "CREATE INDEX approvals_due ON gateway.approvals (expire_time, id)"
        " WHERE default_approve AND decide_time IS NULL"
    )
    read = ["id", "default_approve"]
    op.execute(grant_columns_sql("SELECT", read, "gateway.approvals", "strata_gateway_worker"))


def downgrade() -> None:
    """Drops the default decision: no request is approved automatically."""
    op.execute("REVOKE SELECT (id) ON gateway.approvals FROM strata_gateway_worker")
    op.execute("DROP INDEX gateway.approvals_due")
    op.execute("ALTER TABLE gateway.approvals DROP COLUMN default_approve")
