"""Conversations keep the request that made them, as agents and groups do.

Revision ID: 0014
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the request; those of earlier conversations are known for a week after the request."""
    op.execute(
        "ALTER TABLE conversations"
        " ADD COLUMN request_id text COLLATE \"C\" NOT NULL DEFAULT '',"
        " ADD COLUMN payload_hash text NOT NULL DEFAULT ''"
    )
    op.execute(
        "CREATE UNIQUE INDEX conversations_request ON conversations (project_id, request_id)"
        " WHERE request_id <> ''"
    )


def downgrade() -> None:
    """Drops the requests; the answers of the last week are stored beside them."""
    op.execute("DROP INDEX conversations_request")
    op.execute("ALTER TABLE conversations DROP COLUMN request_id, DROP COLUMN payload_hash")
