"""Adds the hosts to which a tool may connect.

Revision ID: 0004
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the list; existing tools may connect to no host."""
    op.execute("ALTER TABLE tools ADD COLUMN allowed_hosts text[] NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    """Drops the list: tools may then connect to no host."""
    op.execute("ALTER TABLE tools DROP COLUMN allowed_hosts")
