"""Records what memory agents have read; their runs get separate queues.

Revision ID: 0012
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, tenant_policy_sql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_OPEN = "state IN ('QUEUED', 'RUNNING', 'CANCELLING')"


def upgrade() -> None:
    """Adds the marks of memory agents; their runs get a separate queue."""
    op.execute(
        """
        CREATE TABLE gateway.memory_agents (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            conversation_id text COLLATE "C" NOT NULL,
            memory_agent_id text COLLATE "C" NOT NULL,
            frequency integer NOT NULL,
            turns_counter bigint NOT NULL DEFAULT -1,
            newest_sequence bigint NOT NULL DEFAULT -1,
            newest_message_id text COLLATE "C" NOT NULL DEFAULT '',
            last_processed_sequence bigint NOT NULL DEFAULT -1,
            last_processed_message_id text COLLATE "C" NOT NULL DEFAULT '',
            due boolean NOT NULL DEFAULT false,
            run_id text COLLATE "C",
            run_count bigint NOT NULL DEFAULT 0,
            until_sequence bigint NOT NULL DEFAULT -1,
            until_message_id text COLLATE "C" NOT NULL DEFAULT '',
            failures integer NOT NULL DEFAULT 0,
            last_error text NOT NULL DEFAULT '',
            PRIMARY KEY (project_id, agent_id, conversation_id)
        )
        """
    )
    op.execute(
        "CREATE INDEX memory_agents_run ON gateway.memory_agents (project_id, run_id)"
        " WHERE run_id IS NOT NULL"
    )
    op.execute(tenant_policy_sql("gateway.memory_agents"))
    op.execute("REVOKE ALL ON gateway.memory_agents FROM strata_gateway")
    op.execute(
        grant_sql("SELECT, INSERT, UPDATE, DELETE", "gateway.memory_agents", "strata_gateway")
    )
    op.execute("DROP INDEX gateway.runs_ready")
    op.execute(
        "CREATE INDEX runs_ready ON gateway.runs (project_id, run_at)"
        " WHERE state = 'QUEUED' AND kind <> 'SLEEPTIME'"
    )
    op.execute(
        "CREATE INDEX runs_ready_memory ON gateway.runs (project_id, run_at)"
        " WHERE state = 'QUEUED' AND kind = 'SLEEPTIME'"
    )
    op.execute("DROP INDEX gateway.runs_open")
    op.execute(
        f"CREATE INDEX runs_open ON gateway.runs (project_id) WHERE {_OPEN} AND kind <> 'SLEEPTIME'"
    )
    # The tokens that memory agents have used in the last hour.
    op.execute(
        "CREATE INDEX runs_memory_ended ON gateway.runs (finish_time)"
        " WHERE kind = 'SLEEPTIME' AND finish_time IS NOT NULL"
    )
    # The end and the tokens of runs are granted since 0006.
    op.execute(grant_columns_sql("SELECT", ["kind"], "gateway.runs", "strata_gateway_worker"))


def downgrade() -> None:
    """Drops the marks; runs of memory agents wait in the common queue."""
    op.execute("REVOKE SELECT (kind) ON gateway.runs FROM strata_gateway_worker")
    op.execute("DROP TABLE gateway.memory_agents")
    for index in ("runs_memory_ended", "runs_ready_memory", "runs_ready", "runs_open"):
        op.execute(f"DROP INDEX gateway.{index}")
    op.execute(
        "CREATE INDEX runs_ready ON gateway.runs (project_id, run_at) WHERE state = 'QUEUED'"
    )
    op.execute(f"CREATE INDEX runs_open ON gateway.runs (project_id) WHERE {_OPEN}")
