"""Records which files were closed because the prompt had no space for them.

Revision ID: 0007
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the names, which the prompt shows until a file is opened or closed again."""
    op.execute("ALTER TABLE prepared_agents ADD COLUMN closed_files text[] NOT NULL DEFAULT '{}'")


def downgrade() -> None:
    """Drops the names."""
    op.execute("ALTER TABLE prepared_agents DROP COLUMN closed_files")
