"""Adds the settings of agents for the form of user messages.

Revision ID: 0006
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the settings; with an empty object messages are shown unchanged."""
    op.execute("ALTER TABLE agents ADD COLUMN packaging jsonb NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    """Drops the settings; an older release shows messages unchanged."""
    op.execute("ALTER TABLE agents DROP COLUMN packaging")
