"""Indexes the turns of an agent by age, the order in which they are deleted.

Revision ID: 0005
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the age of turns to the index of an agent's turns."""
    op.execute("DROP INDEX turns_by_agent")
    op.execute("CREATE INDEX turns_by_agent ON turns (project_id, agent_id, begin_time, run_id)")


def downgrade() -> None:
    """Drops the age from the index."""
    op.execute("DROP INDEX turns_by_agent")
    op.execute("CREATE INDEX turns_by_agent ON turns (project_id, agent_id)")
