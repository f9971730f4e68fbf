"""Records in the journal which dispatches finish their step without a caller.

Revision ID: 0004
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the time until which the next attempt waits for such a dispatch."""
    op.execute("ALTER TABLE journal ADD COLUMN finishing_until timestamptz")


def downgrade() -> None:
    """Drops the time; an older release takes a turn over without waiting."""
    op.execute("ALTER TABLE journal DROP COLUMN finishing_until")
