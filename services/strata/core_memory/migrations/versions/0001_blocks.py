"""Blocks, their attachments and versions, and stored answers for repeated requests.

Revision ID: 0001
"""

from alembic import op

from strata.shared.db import (
    grant_columns_sql,
    grant_sql,
    tenant_policy_sql,
    worker_policy_sql,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = ("blocks", "attachments", "block_versions", "prepared_agents", "requests")
WORKER = "strata_core_memory_worker"


def upgrade() -> None:
    """Creates the tables of the service."""
    op.execute(
        """
        CREATE TABLE blocks (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            label text COLLATE "C" NOT NULL,
            value text NOT NULL,
            char_count integer NOT NULL GENERATED ALWAYS AS (char_length(value)) STORED,
            description text NOT NULL,
            char_limit integer NOT NULL,
            read_only boolean NOT NULL,
            revision bigint NOT NULL,
            metadata jsonb NOT NULL,
            made_for text COLLATE "C" NOT NULL,
            create_time timestamptz NOT NULL,
            update_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, id),
            CONSTRAINT blocks_identity UNIQUE (project_id, id, label),
            CONSTRAINT blocks_within_limit CHECK (char_length(value) <= char_limit)
        )
        """
    )
    op.execute("CREATE INDEX blocks_by_label ON blocks (project_id, label, id)")
    op.execute("CREATE INDEX blocks_by_agent ON blocks (project_id, made_for) WHERE made_for <> ''")
    # The existing agents, as reported by the agent loop: nothing is attached to unknown agents.
    op.execute(
        """
        CREATE TABLE prepared_agents (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, agent_id)
        )
        """
    )
    # The label is repeated here, kept equal by the foreign key, so that one agent cannot have two
    # blocks with the same label. The position is the order of rendering.
    op.execute(
        """
        CREATE TABLE attachments (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            block_id text COLLATE "C" NOT NULL,
            label text COLLATE "C" NOT NULL,
            position bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, agent_id, block_id),
            CONSTRAINT attachments_label UNIQUE (project_id, agent_id, label),
            CONSTRAINT attachments_agent FOREIGN KEY (project_id, agent_id)
                REFERENCES prepared_agents (project_id, agent_id) ON DELETE CASCADE,
            CONSTRAINT attachments_block FOREIGN KEY (project_id, block_id, label)
                REFERENCES blocks (project_id, id, label) ON UPDATE CASCADE ON DELETE CASCADE
        )
        """
    )
    op.execute("CREATE INDEX attachments_by_block ON attachments (project_id, block_id, label)")
    op.execute(
        """
        CREATE TABLE block_versions (
            project_id text COLLATE "C" NOT NULL,
            block_id text COLLATE "C" NOT NULL,
            revision bigint NOT NULL,
            label text COLLATE "C" NOT NULL,
            value text NOT NULL,
            description text NOT NULL,
            char_limit integer NOT NULL,
            read_only boolean NOT NULL,
            metadata jsonb NOT NULL,
            operation text NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            step_id text COLLATE "C" NOT NULL,
            tool_call_id text NOT NULL,
            model text NOT NULL,
            reason text NOT NULL,
            principal text NOT NULL,
            create_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, block_id, revision),
            CONSTRAINT block_versions_block FOREIGN KEY (project_id, block_id)
                REFERENCES blocks (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute(
        """
        CREATE TABLE requests (
            project_id text COLLATE "C" NOT NULL,
            request_id text COLLATE "C" NOT NULL,
            digest bytea NOT NULL,
            response bytea NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT requests_once PRIMARY KEY (project_id, request_id)
        )
        """
    )
    op.execute("CREATE INDEX requests_by_age ON requests (create_time)")
    for table in TABLES:
        op.execute(tenant_policy_sql(table))
    # The worker deletes old requests of every project; it cannot read answers.
    op.execute(worker_policy_sql("requests", "core_memory"))
    op.execute(grant_sql("DELETE", "requests", WORKER))
    op.execute(
        grant_columns_sql("SELECT", ["project_id", "request_id", "create_time"], "requests", WORKER)
    )


def downgrade() -> None:
    """Drops the tables of the service."""
    for table in ("requests", "block_versions", "attachments", "prepared_agents", "blocks"):
        op.execute(f"DROP TABLE {table}")
