"""Files are sent to the index again, with the headings of their chunks.

Revision ID: 0011
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Queues all files that are indexed; their earlier chunks are searched until then."""
    # The policy of the table hides all rows from a session that names no project.
    op.execute("ALTER TABLE files NO FORCE ROW LEVEL SECURITY")
    op.execute(
        """
        UPDATE files SET state = 'indexing', chunk_count = 0, indexed_count = 0,
                         lease_until = NULL, attempts = 0
        WHERE state IN ('ready', 'indexing') AND chunk_count > 0
        """
    )
    op.execute("ALTER TABLE files FORCE ROW LEVEL SECURITY")


def downgrade() -> None:
    """Changes nothing: an earlier release ignores headings."""
