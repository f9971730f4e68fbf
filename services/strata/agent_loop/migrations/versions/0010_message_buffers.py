"""Adds the window length of voice agents above which messages are archived.

Revision ID: 0010
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the lengths; 0 for agents of other types, as all existing agents are."""
    op.execute(
        """
        ALTER TABLE agents
            ADD COLUMN max_message_buffer_length integer NOT NULL DEFAULT 0,
            ADD COLUMN min_message_buffer_length integer NOT NULL DEFAULT 0
        """
    )


def downgrade() -> None:
    """Drops the lengths."""
    op.execute(
        """
        ALTER TABLE agents
            DROP COLUMN max_message_buffer_length,
            DROP COLUMN min_message_buffer_length
        """
    )
