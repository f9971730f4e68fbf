"""Records which messages the vector index has, and which it has to delete.

Revision ID: 0002
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

WORKER = "strata_recall_worker"


def upgrade() -> None:
    """Adds the index state of every message, and the queue of agents to delete from the index."""
    op.execute(
        "ALTER TABLE messages ADD COLUMN index_state text COLLATE \"C\" NOT NULL DEFAULT 'none'"
        " CHECK (index_state IN ('none', 'pending', 'indexed'))"
    )
    # The policy applies to the owner too; no other session reads while the table is locked.
    op.execute("ALTER TABLE messages NO FORCE ROW LEVEL SECURITY")
    op.execute(
        "UPDATE messages SET index_state = 'pending' WHERE role IN ('user', 'assistant', 'summary')"
        " AND (search_words <> '' OR search_pairs <> '')"
    )
    op.execute("ALTER TABLE messages FORCE ROW LEVEL SECURITY")
    # The first is the indexer's queue; the second finds the waiting messages of an agent by words.
    op.execute(
        "CREATE INDEX messages_pending ON messages (create_time) WHERE index_state = 'pending'"
    )
    op.execute(
        "CREATE INDEX messages_pending_here ON messages (project_id, agent_id)"
        " WHERE index_state = 'pending'"
    )
    op.execute(
        """
        CREATE TABLE forgotten_agents (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            delete_time timestamptz NOT NULL DEFAULT now(),
            swept boolean NOT NULL DEFAULT false,
            PRIMARY KEY (project_id, agent_id)
        )
        """
    )
    op.execute(tenant_policy_sql("forgotten_agents"))
    # The indexer works over all projects; it cannot read the text of messages.
    op.execute(worker_policy_sql("messages", "recall"))
    op.execute(
        grant_columns_sql(
            "SELECT", ["project_id", "id", "index_state", "create_time"], "messages", WORKER
        )
    )
    op.execute(grant_columns_sql("UPDATE", ["index_state"], "messages", WORKER))
    op.execute(worker_policy_sql("forgotten_agents", "recall"))
    op.execute(grant_sql("SELECT, UPDATE, DELETE", "forgotten_agents", WORKER))


def downgrade() -> None:
    """Drops the queue and the states."""
    op.execute("DROP TABLE forgotten_agents")
    op.execute("DROP POLICY worker ON messages")
    op.execute("REVOKE SELECT (project_id, id, create_time) ON messages FROM " + WORKER)
    op.execute("ALTER TABLE messages DROP COLUMN index_state")
