"""A queued run can deny the approval that is open when it starts.

Revision ID: 0017
"""

from alembic import op

from strata.shared.db import grant_columns_sql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_WORKER = "strata_gateway_worker"
_DECISION = ["decide_time", "answer_run_id"]


def upgrade() -> None:
    """Adds whether a run denies an open approval; already queued runs still wait for the answer."""
    op.execute("ALTER TABLE gateway.runs ADD COLUMN denies_approval boolean NOT NULL DEFAULT false")
    # The worker role, which claims queued runs, writes these denials.
    op.execute(grant_columns_sql("SELECT", ["denies_approval"], "gateway.runs", _WORKER))
    op.execute(grant_columns_sql("UPDATE", _DECISION, "gateway.approvals", _WORKER))


def downgrade() -> None:
    """Drops it: queued runs wait for the answer."""
    op.execute(f"REVOKE UPDATE ({', '.join(_DECISION)}) ON gateway.approvals FROM {_WORKER}")
    op.execute("ALTER TABLE gateway.runs DROP COLUMN denies_approval")
