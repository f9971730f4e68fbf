"""Messages are indexed for one project after another.

Revision ID: 0007
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Orders the queue by project; ordered by time, small projects waited for large ones."""
    op.execute("DROP INDEX messages_pending")
    op.execute(
        "CREATE INDEX messages_pending ON messages (project_id, create_time)"
        " WHERE index_state = 'pending'"
    )


def downgrade() -> None:
    """Orders the queue by time only."""
    op.execute("DROP INDEX messages_pending")
    op.execute(
        "CREATE INDEX messages_pending ON messages (create_time) WHERE index_state = 'pending'"
    )
