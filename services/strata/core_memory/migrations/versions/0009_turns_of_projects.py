"""Files are read and indexed for one project after another.

Revision ID: 0009
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Orders both queues by project."""
    op.execute("DROP INDEX contents_to_read")
    op.execute("DROP INDEX files_to_send")
    op.execute(
        "CREATE INDEX contents_to_read ON contents (project_id, create_time) WHERE state = 'stored'"
    )
    op.execute(
        "CREATE INDEX files_to_send ON files (project_id, update_time)"
        " WHERE state = 'indexing' AND chunk_count = 0"
    )


def downgrade() -> None:
    """Orders both queues by time only."""
    op.execute("DROP INDEX contents_to_read")
    op.execute("DROP INDEX files_to_send")
    op.execute("CREATE INDEX contents_to_read ON contents (create_time) WHERE state = 'stored'")
    op.execute(
        "CREATE INDEX files_to_send ON files (update_time)"
        " WHERE state = 'indexing' AND chunk_count = 0"
    )
