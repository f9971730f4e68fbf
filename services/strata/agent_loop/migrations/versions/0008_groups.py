"""Groups of agents and their members.

Revision ID: 0008
"""

from alembic import op

from strata.shared.db import tenant_policy_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TABLES = ("groups", "group_members")


def upgrade() -> None:
    """Creates the tables. An agent that is deleted leaves its groups."""
    op.execute(
        """
        CREATE TABLE groups (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            state text NOT NULL CHECK (state IN ('creating', 'active')),
            request_id text COLLATE "C" NOT NULL,
            payload_hash text NOT NULL,
            description text NOT NULL,
            manager_type text NOT NULL,
            manager_agent_id text COLLATE "C",
            manager jsonb NOT NULL,
            shared_block_ids text[] NOT NULL,
            revision bigint NOT NULL DEFAULT 1,
            create_time timestamptz NOT NULL DEFAULT now(),
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id),
            CONSTRAINT groups_manager FOREIGN KEY (project_id, manager_agent_id)
                REFERENCES agents (project_id, id) ON DELETE SET NULL (manager_agent_id)
        )
        """
    )
    op.execute(
        "CREATE UNIQUE INDEX groups_request ON groups (project_id, request_id)"
        " WHERE request_id <> ''"
    )
    op.execute("CREATE INDEX groups_by_manager ON groups (project_id, manager_agent_id)")
    op.execute(
        """
        CREATE TABLE group_members (
            project_id text COLLATE "C" NOT NULL,
            group_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            position integer NOT NULL,
            PRIMARY KEY (project_id, group_id, agent_id),
            CONSTRAINT group_members_group FOREIGN KEY (project_id, group_id)
                REFERENCES groups (project_id, id) ON DELETE CASCADE,
            CONSTRAINT group_members_agent FOREIGN KEY (project_id, agent_id)
                REFERENCES agents (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute("CREATE INDEX group_members_by_agent ON group_members (project_id, agent_id)")
    for table in TABLES:
        op.execute(tenant_policy_sql(table))


def downgrade() -> None:
    """Drops the tables."""
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {table}")
