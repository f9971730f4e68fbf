"""Adds to the ledger the calls that code makes.

Revision ID: 0003
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the parent call of nested calls, and their arguments, which no reply contains."""
    op.execute(
        """
        ALTER TABLE tool_calls
            ADD COLUMN parent_id text COLLATE "C" NOT NULL DEFAULT '',
            ADD COLUMN arguments text NOT NULL DEFAULT ''
        """
    )


def downgrade() -> None:
    """Drops the columns; an older release ignores rows without a call in a reply."""
    op.execute("ALTER TABLE tool_calls DROP COLUMN parent_id, DROP COLUMN arguments")
