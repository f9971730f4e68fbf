"""Records the labels of untrusted content from which the text of a block derives.

Revision ID: 0005
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the labels to blocks and versions; existing rows have none."""
    for table in ("blocks", "block_versions"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN taint text[] NOT NULL DEFAULT '{{}}'")


def downgrade() -> None:
    """Drops the labels."""
    for table in ("blocks", "block_versions"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN taint")
