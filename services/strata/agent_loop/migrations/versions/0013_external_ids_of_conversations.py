"""Conversations have the identifier that a client uses for them.

Revision ID: 0013
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the identifier; empty means that there is none."""
    op.execute("ALTER TABLE conversations ADD COLUMN external_id text NOT NULL DEFAULT ''")
    op.execute(
        "CREATE UNIQUE INDEX conversations_external_id"
        " ON conversations (project_id, agent_id, external_id) WHERE external_id <> ''"
    )


def downgrade() -> None:
    """Drops the identifiers; the older release finds the conversations of users by their titles."""
    op.execute("DROP INDEX conversations_external_id")
    op.execute("ALTER TABLE conversations DROP COLUMN external_id")
