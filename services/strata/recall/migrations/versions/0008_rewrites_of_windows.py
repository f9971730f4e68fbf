"""Records the revision of a window's last change other than an addition at the end.

Revision ID: 0008
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the revision; no caller holds messages of an existing window."""
    op.execute("ALTER TABLE windows ADD COLUMN rewrite_revision bigint NOT NULL DEFAULT 0")


def downgrade() -> None:
    """Removes the revision."""
    op.execute("ALTER TABLE windows DROP COLUMN rewrite_revision")
