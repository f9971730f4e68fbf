"""Records which member of a swarm holds the conversation.

Revision ID: 0011
"""

from alembic import op

from strata.shared.db import tenant_policy_sql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the table; a group without a row has its first member as holder."""
    op.execute(
        """
        CREATE TABLE group_holders (
            project_id text COLLATE "C" NOT NULL,
            group_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            first_agent_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            hand_overs integer NOT NULL,
            PRIMARY KEY (project_id, group_id),
            CONSTRAINT group_holders_group FOREIGN KEY (project_id, group_id)
                REFERENCES groups (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute(tenant_policy_sql("group_holders"))


def downgrade() -> None:
    """Drops the table: the first member of each swarm holds the conversation again."""
    op.execute("DROP TABLE group_holders")
