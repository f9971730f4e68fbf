"""Stored responses name the block that they hold, so that a purge finds them.

Revision ID: 0012
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the block of a response; of responses stored before it is unknown."""
    op.execute("""ALTER TABLE requests ADD COLUMN block_id text COLLATE "C" NOT NULL DEFAULT '*'""")
    op.execute("CREATE INDEX requests_by_block ON requests (project_id, block_id)")


def downgrade() -> None:
    """Drops the block of a response."""
    op.execute("ALTER TABLE requests DROP COLUMN block_id")
