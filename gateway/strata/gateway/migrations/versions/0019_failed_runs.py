"""Failed and cancelled runs are found without reading those that completed.

Revision ID: 0019
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the index; runs that complete have no entry in it."""
    op.execute(
        "CREATE INDEX runs_not_completed ON gateway.runs (project_id, state, id)"
        " WHERE state IN ('FAILED', 'CANCELLED')"
    )


def downgrade() -> None:
    """Drops the index: the earlier release reads all runs of the project instead."""
    op.execute("DROP INDEX gateway.runs_not_completed")
