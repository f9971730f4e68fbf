"""Records for each run the run whose agent started it.

Revision ID: 0005
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the parent; existing runs have none."""
    op.execute('ALTER TABLE gateway.runs ADD COLUMN parent_run_id text COLLATE "C"')
    # For the runs that stop with their parent; few runs have one.
    op.execute(
        "CREATE INDEX runs_of_parent ON gateway.runs (project_id, parent_run_id)"
        " WHERE parent_run_id IS NOT NULL"
    )


def downgrade() -> None:
    """Drops the parent: only the text of a message shows which agent sent it."""
    op.execute("DROP INDEX gateway.runs_of_parent")
    op.execute("ALTER TABLE gateway.runs DROP COLUMN parent_run_id")
