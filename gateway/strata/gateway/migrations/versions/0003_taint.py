"""Records the labels of untrusted content that a run had in its context.

Revision ID: 0003
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the labels to runs; existing runs have none."""
    op.execute("ALTER TABLE gateway.runs ADD COLUMN taint text[] NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    """Drops the labels."""
    op.execute("ALTER TABLE gateway.runs DROP COLUMN taint")
