"""The names of the people who write to an agent are found without reading its messages.

Revision ID: 0009
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds an index of the names; messages without a name are not in it."""
    op.execute(
        "CREATE INDEX messages_by_name ON messages (project_id, agent_id, name)"
        " WHERE name <> '' AND role = 'user'"
    )


def downgrade() -> None:
    """Removes the index."""
    op.execute("DROP INDEX messages_by_name")
