"""Stored responses name the tool that they hold, so that its deletion finds them.

Revision ID: 0007
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the tool of a response; of responses stored before it is unknown."""
    op.execute("""ALTER TABLE requests ADD COLUMN tool_id text COLLATE "C" NOT NULL DEFAULT '*'""")
    op.execute("CREATE INDEX requests_by_tool ON requests (project_id, tool_id)")


def downgrade() -> None:
    """Drops the tool of a response."""
    op.execute("ALTER TABLE requests DROP COLUMN tool_id")
