"""Ingestions of files that follow the run of a memory agent are recorded until they have been done.

Revision ID: 0023
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_TABLE = "gateway.open_ingestions"
_SERVICE, _WORKER = "strata_gateway", "strata_gateway_worker"


def upgrade() -> None:
    """Creates the table; the runs of an earlier release do not write it."""
    op.execute(
        f"""
        CREATE TABLE {_TABLE} (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            due_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, agent_id)
        )
        """
    )
    op.execute(f"CREATE INDEX open_ingestions_due ON {_TABLE} (due_time)")
    op.execute(tenant_policy_sql(_TABLE))
    op.execute(f"REVOKE ALL ON {_TABLE} FROM {_SERVICE}")
    op.execute(grant_sql("SELECT, INSERT, UPDATE, DELETE", _TABLE, _SERVICE))
    op.execute(worker_policy_sql(_TABLE, "gateway"))
    columns = ["project_id", "agent_id", "run_id", "due_time"]
    op.execute(grant_columns_sql("SELECT", columns, _TABLE, _WORKER))
    op.execute(grant_columns_sql("UPDATE", ["due_time"], _TABLE, _WORKER))


def downgrade() -> None:
    """Drops the table: in the earlier release the next run of a memory agent goes on."""
    op.execute(f"DROP TABLE {_TABLE}")
