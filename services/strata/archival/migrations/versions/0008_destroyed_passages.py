"""Tombstones of destroyed passages are found by the time of the destruction.

Revision ID: 0008
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the index: tombstones are now removed from the vector index twice."""
    op.execute("CREATE INDEX passages_destroyed ON passages (update_time) WHERE purge")


def downgrade() -> None:
    """Drops the index. The earlier release deletes only tombstones that wait for the indexer."""
    op.execute("DROP INDEX passages_destroyed")
    op.execute("UPDATE passages SET indexed_revision = 0 WHERE purge AND indexed_revision > 0")
