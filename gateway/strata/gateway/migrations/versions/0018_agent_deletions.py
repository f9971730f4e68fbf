"""Deletions of agents that have not been finished.

Revision ID: 0018
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_TABLE = "gateway.agent_deletions"
_SERVICE, _WORKER = "strata_gateway", "strata_gateway_worker"


def upgrade() -> None:
    """Creates the table of deletions."""
    op.execute(
        f"""
        CREATE TABLE {_TABLE} (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            due_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, agent_id)
        )
        """
    )
    op.execute(f"CREATE INDEX agent_deletions_due ON {_TABLE} (due_time)")
    op.execute(tenant_policy_sql(_TABLE))
    op.execute(f"REVOKE ALL ON {_TABLE} FROM {_SERVICE}")
    op.execute(grant_sql("SELECT, INSERT, UPDATE, DELETE", _TABLE, _SERVICE))
    op.execute(worker_policy_sql(_TABLE, "gateway"))
    read = ["project_id", "agent_id", "due_time"]
    op.execute(grant_columns_sql("SELECT", read, _TABLE, _WORKER))
    op.execute(grant_columns_sql("UPDATE", ["due_time"], _TABLE, _WORKER))


def downgrade() -> None:
    """Drops the table: the earlier release leaves such deletions to a repeated call."""
    op.execute(f"DROP TABLE {_TABLE}")
