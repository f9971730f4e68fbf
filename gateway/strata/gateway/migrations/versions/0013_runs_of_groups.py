"""Adds runs that are part of the run of a group.

Revision ID: 0013
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the group's run, and whether a run takes a slot of its gateway."""
    op.execute(
        "ALTER TABLE gateway.runs"
        " ADD COLUMN group_run_id text COLLATE \"C\" NOT NULL DEFAULT '',"
        " ADD COLUMN takes_slot boolean NOT NULL DEFAULT true"
    )


def downgrade() -> None:
    """Drops both columns: runs of members count as open runs of the project, and take slots."""
    op.execute("ALTER TABLE gateway.runs DROP COLUMN group_run_id, DROP COLUMN takes_slot")
