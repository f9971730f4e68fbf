"""Messages, windows and turns.

Revision ID: 0001
"""

from alembic import op

from strata.shared.db import tenant_policy_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = ("messages", "windows", "turns")


def upgrade() -> None:
    """Creates the tables of the service."""
    op.execute(
        """
        CREATE TABLE messages (
            project_id text COLLATE "C" NOT NULL,
            conversation_id text COLLATE "C" NOT NULL,
            sequence bigint NOT NULL,
            id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            role text COLLATE "C" NOT NULL,
            parts jsonb NOT NULL,
            name text NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            step_id text COLLATE "C" NOT NULL,
            step integer NOT NULL,
            group_id text COLLATE "C" NOT NULL,
            model text NOT NULL,
            usage jsonb,
            provenance text[] NOT NULL,
            pinned boolean NOT NULL,
            client_message_id text NOT NULL,
            create_time timestamptz NOT NULL,
            search_words text NOT NULL,
            search_pairs text NOT NULL,
            search_language regconfig NOT NULL,
            search_vector tsvector NOT NULL GENERATED ALWAYS AS (
                to_tsvector(search_language, search_words)
                || to_tsvector('simple'::regconfig, search_pairs)
            ) STORED,
            PRIMARY KEY (project_id, conversation_id, sequence),
            CONSTRAINT messages_id UNIQUE (project_id, id)
        )
        """
    )
    op.execute("CREATE INDEX messages_by_agent ON messages (project_id, agent_id, create_time, id)")
    op.execute(
        "CREATE INDEX messages_by_run ON messages (project_id, run_id, sequence) WHERE run_id <> ''"
    )
    # btree_gin lets one index narrow by agent and by word at once.
    op.execute("CREATE INDEX messages_by_word ON messages USING gin (agent_id, search_vector)")
    op.execute(
        """
        CREATE TABLE windows (
            project_id text COLLATE "C" NOT NULL,
            conversation_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            message_ids text[] COLLATE "C" NOT NULL,
            revision bigint NOT NULL,
            message_count bigint NOT NULL,
            metadata_stale boolean NOT NULL,
            search_language regconfig NOT NULL,
            active_run_id text COLLATE "C" NOT NULL,
            attempt integer NOT NULL,
            committed_steps integer NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, conversation_id)
        )
        """
    )
    op.execute("CREATE INDEX windows_by_agent ON windows (project_id, agent_id)")
    # A run that has begun is recorded, so that it cannot begin again after a later run has taken
    # the window.
    op.execute(
        """
        CREATE TABLE turns (
            project_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            conversation_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            begin_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, run_id)
        )
        """
    )
    op.execute("CREATE INDEX turns_by_agent ON turns (project_id, agent_id)")
    for table in TABLES:
        op.execute(tenant_policy_sql(table))


def downgrade() -> None:
    """Drops the tables of the service."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
