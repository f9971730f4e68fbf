"""Completed runs are found without reading those that failed or were cancelled.

Revision ID: 0021
"""

from alembic import op

from strata.shared.migrate.indexes import create_index_concurrently

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the index."""
    create_index_concurrently(
        "runs_completed",
        "gateway.runs (project_id, id) WHERE state = 'COMPLETED'",
        schema="gateway",
    )


def downgrade() -> None:
    """Drops the index: the earlier release reads all runs of the project instead."""
    op.execute("DROP INDEX gateway.runs_completed")
