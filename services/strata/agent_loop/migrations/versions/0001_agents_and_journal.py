"""Agents, conversations, the step journal and the tool ledger.

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

TABLES = ("agents", "conversations", "requests", "journal", "tool_calls")
WORKER = "strata_agent_loop_worker"


def upgrade() -> None:
    """Creates the tables of the service."""
    op.execute(
        """
        CREATE TABLE agents (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            name text COLLATE "C" NOT NULL,
            state text NOT NULL CHECK (state IN ('creating', 'active', 'deleting')),
            request_id text COLLATE "C" NOT NULL,
            payload_hash text NOT NULL,
            type text NOT NULL,
            description text NOT NULL,
            system text NOT NULL,
            model jsonb NOT NULL,
            tools text[] NOT NULL,
            tool_rules jsonb NOT NULL DEFAULT '[]',
            tags text[] NOT NULL,
            timezone text NOT NULL,
            metadata jsonb NOT NULL,
            compaction jsonb NOT NULL,
            max_files_open integer NOT NULL,
            per_file_view_window_char_limit integer NOT NULL,
            enable_sleeptime boolean NOT NULL DEFAULT false,
            message_buffer_autoclear boolean NOT NULL DEFAULT false,
            revision bigint NOT NULL DEFAULT 1,
            create_time timestamptz NOT NULL DEFAULT now(),
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id),
            CONSTRAINT agents_name UNIQUE (project_id, name)
        )
        """
    )
    op.execute(
        "CREATE UNIQUE INDEX agents_request ON agents (project_id, request_id)"
        " WHERE request_id <> ''"
    )
    op.execute(
        """
        CREATE TABLE conversations (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            title text NOT NULL,
            forked_from_id text NOT NULL DEFAULT '',
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id),
            CONSTRAINT conversations_agent FOREIGN KEY (project_id, agent_id)
                REFERENCES agents (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute("CREATE INDEX conversations_by_agent ON conversations (project_id, agent_id, id)")
    op.execute(
        """
        CREATE TABLE requests (
            project_id text COLLATE "C" NOT NULL,
            request_id text COLLATE "C" NOT NULL,
            payload_hash text NOT NULL,
            answer jsonb NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT requests_once PRIMARY KEY (project_id, request_id)
        )
        """
    )
    op.execute("CREATE INDEX requests_by_age ON requests (create_time)")
    # One row per run that called tools or was dispatched again: its fence, and the step under
    # way. The reply is json, not jsonb: it must be returned byte for byte.
    op.execute(
        """
        CREATE TABLE journal (
            project_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            conversation_id text COLLATE "C" NOT NULL,
            attempt integer NOT NULL,
            step integer NOT NULL DEFAULT 0,
            step_id text NOT NULL DEFAULT '',
            message_id text NOT NULL DEFAULT '',
            model text NOT NULL DEFAULT '',
            reply json,
            reply_attempt integer NOT NULL DEFAULT 0,
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, run_id),
            CONSTRAINT journal_agent FOREIGN KEY (project_id, agent_id)
                REFERENCES agents (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute("CREATE INDEX journal_by_agent ON journal (project_id, agent_id)")
    op.execute("CREATE INDEX journal_by_age ON journal (update_time)")
    # The ledger. `attempt` is that of the dispatch that wrote the reply: if the model of a step is
    # asked again, the step gets new calls.
    op.execute(
        """
        CREATE TABLE tool_calls (
            project_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            step integer NOT NULL,
            attempt integer NOT NULL,
            tool_call_id text COLLATE "C" NOT NULL,
            position integer NOT NULL,
            name text NOT NULL,
            effect text NOT NULL,
            state text NOT NULL
                CHECK (state IN ('PENDING', 'RUNNING', 'COMMITTED', 'FAILED', 'UNKNOWN')),
            result json,
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, run_id, step, attempt, tool_call_id),
            CONSTRAINT tool_calls_journal FOREIGN KEY (project_id, run_id)
                REFERENCES journal (project_id, run_id) ON DELETE CASCADE
        )
        """
    )
    for table in TABLES:
        op.execute(tenant_policy_sql(table))
    # The worker deletes old requests and old journals of ended runs, of every project; it cannot
    # read their content.
    op.execute(worker_policy_sql("requests", "agent_loop"))
    op.execute(grant_sql("DELETE", "requests", WORKER))
    op.execute(
        grant_columns_sql("SELECT", ["project_id", "request_id", "create_time"], "requests", WORKER)
    )
    op.execute(worker_policy_sql("journal", "agent_loop"))
    op.execute(grant_sql("DELETE", "journal", WORKER))
    op.execute(
        grant_columns_sql("SELECT", ["project_id", "run_id", "update_time"], "journal", WORKER)
    )


def downgrade() -> None:
    """Drops the tables of the service."""
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {table}")
