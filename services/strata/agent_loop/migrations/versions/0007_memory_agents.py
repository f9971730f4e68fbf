"""An agent can have a memory agent.

Revision ID: 0007
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the relation of agents and memory agents; no agent has a memory agent yet.

    The column enable_sleeptime is not read: it follows from memory_agent_id.
    """
    op.execute(
        """
        ALTER TABLE agents
            ADD COLUMN memory_agent_id text COLLATE "C" NOT NULL DEFAULT '',
            ADD COLUMN sleeptime_frequency integer NOT NULL DEFAULT 0,
            ADD COLUMN tends_agent_id text COLLATE "C" NOT NULL DEFAULT ''
        """
    )
    op.execute(
        "CREATE UNIQUE INDEX agents_tends ON agents (project_id, tends_agent_id)"
        " WHERE tends_agent_id <> ''"
    )


def downgrade() -> None:
    """Turns memory agents into ordinary agents."""
    op.execute("DROP INDEX agents_tends")
    op.execute(
        """
        ALTER TABLE agents
            DROP COLUMN memory_agent_id,
            DROP COLUMN sleeptime_frequency,
            DROP COLUMN tends_agent_id
        """
    )
