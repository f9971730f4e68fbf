"""Keys of model endpoints, of a project or of one agent.

Revision ID: 0002
"""

from alembic import op

from strata.shared.db import tenant_policy_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the table of keys. No worker can see it."""
    # `agent_id` is '' for a key of the whole project; a key of an agent is deleted with the agent.
    op.execute(
        """
        CREATE TABLE model_keys (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            provider text COLLATE "C" NOT NULL,
            sealed bytea NOT NULL,
            owner_id text COLLATE "C" GENERATED ALWAYS AS (NULLIF(agent_id, '')) STORED,
            create_time timestamptz NOT NULL DEFAULT now(),
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, agent_id, provider),
            CONSTRAINT model_keys_agent FOREIGN KEY (project_id, owner_id)
                REFERENCES agents (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute(tenant_policy_sql("model_keys"))


def downgrade() -> None:
    """Drops the keys."""
    op.execute("DROP TABLE model_keys")
