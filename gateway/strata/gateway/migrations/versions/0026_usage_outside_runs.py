"""The tokens of model calls that belong to no run.

Revision ID: 0026
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_TABLE = "gateway.usage_outside_runs"
_SERVICE, _WORKER = "strata_gateway", "strata_gateway_worker"
_COUNTS = (
    "prompt_tokens",
    "completion_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)


def upgrade() -> None:
    """Creates the table."""
    counts = "".join(f"{count} bigint NOT NULL DEFAULT 0," for count in _COUNTS)
    op.execute(
        f"""
        CREATE TABLE {_TABLE} (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            step_count integer NOT NULL,
            {counts}
            usage_estimated boolean NOT NULL DEFAULT false,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id)
        )
        """
    )
    op.execute(f"CREATE INDEX usage_outside_runs_time ON {_TABLE} (project_id, create_time)")
    op.execute(tenant_policy_sql(_TABLE))
    op.execute(f"REVOKE ALL ON {_TABLE} FROM {_SERVICE}")
    op.execute(grant_sql("SELECT, INSERT", _TABLE, _SERVICE))
    op.execute(worker_policy_sql(_TABLE, "gateway"))
    read = ["project_id", "create_time", "step_count", *_COUNTS, "usage_estimated"]
    op.execute(grant_columns_sql("SELECT", read, _TABLE, _WORKER))


def downgrade() -> None:
    """Drops the table: the earlier release counts runs only."""
    op.execute(f"DROP TABLE {_TABLE}")
