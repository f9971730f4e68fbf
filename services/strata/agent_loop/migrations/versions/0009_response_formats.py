"""Adds the response format of agents.

Revision ID: 0009
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the format; an empty object means any text."""
    op.execute("ALTER TABLE agents ADD COLUMN response_format jsonb NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    """Drops the format; an older release requests text."""
    op.execute("ALTER TABLE agents DROP COLUMN response_format")
