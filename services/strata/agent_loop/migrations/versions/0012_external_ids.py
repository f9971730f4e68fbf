"""Agents have the identifier that a client uses for them.

Revision ID: 0012
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the identifier; empty means that there is none."""
    op.execute("ALTER TABLE agents ADD COLUMN external_id text NOT NULL DEFAULT ''")


def downgrade() -> None:
    """Drops the identifiers."""
    op.execute("ALTER TABLE agents DROP COLUMN external_id")
