"""The most used tags of an archive are read from an index.

Revision ID: 0005
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the index; it does not contain tags that no passage has."""
    op.execute(
        "CREATE INDEX archive_tags_most_used ON archive_tags"
        " (project_id, archive_id, count DESC, tag) WHERE count > 0"
    )


def downgrade() -> None:
    """Drops the index."""
    op.execute("DROP INDEX archive_tags_most_used")
