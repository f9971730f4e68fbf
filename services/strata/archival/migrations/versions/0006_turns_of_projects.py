"""Passages and files are indexed for one project after another.

Revision ID: 0006
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


_PENDING = "WHERE indexed_revision < revision"
_QUEUED = "WHERE state <> 'serving' OR indexed_count < chunk_count"


def upgrade() -> None:
    """Orders the queues by project; ordered by time, small projects waited for large ones."""
    op.execute("DROP INDEX passages_pending")
    op.execute("DROP INDEX chunk_sets_queue")
    op.execute(f"CREATE INDEX passages_pending ON passages (project_id, update_time) {_PENDING}")
    op.execute(f"CREATE INDEX chunk_sets_queue ON chunk_sets (project_id, queue_time) {_QUEUED}")


def downgrade() -> None:
    """Orders the queues by time only."""
    op.execute("DROP INDEX passages_pending")
    op.execute("DROP INDEX chunk_sets_queue")
    op.execute(f"CREATE INDEX passages_pending ON passages (update_time) {_PENDING}")
    op.execute(f"CREATE INDEX chunk_sets_queue ON chunk_sets (queue_time) {_QUEUED}")
