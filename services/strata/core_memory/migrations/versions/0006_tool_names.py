"""Records which tool made a version of a block.

Revision ID: 0006
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the name to versions; existing versions have none."""
    op.execute("ALTER TABLE block_versions ADD COLUMN tool_name text NOT NULL DEFAULT ''")


def downgrade() -> None:
    """Drops the name."""
    op.execute("ALTER TABLE block_versions DROP COLUMN tool_name")
