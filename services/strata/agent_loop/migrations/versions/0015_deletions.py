"""Stored responses name their agent or group, and unfinished agents are found by an index.

Revision ID: 0015
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the subject of a response, which is unknown for earlier ones, and the index."""
    op.execute(
        """ALTER TABLE requests ADD COLUMN subject_id text COLLATE "C" NOT NULL DEFAULT '*'"""
    )
    op.execute("CREATE INDEX requests_by_subject ON requests (project_id, subject_id)")
    op.execute("CREATE INDEX agents_unfinished ON agents (project_id) WHERE state <> 'active'")


def downgrade() -> None:
    """Drops the subject of a response, and the index."""
    op.execute("DROP INDEX agents_unfinished")
    op.execute("ALTER TABLE requests DROP COLUMN subject_id")
