"""Creations of agents that have not ended; approvals of deleted agents are deleted.

Revision ID: 0020
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_TABLE = "gateway.agent_creations"
_SERVICE, _WORKER = "strata_gateway", "strata_gateway_worker"


def upgrade() -> None:
    """Creates the table of creations, and allows the deletion of approvals."""
    op.execute(
        f"""
        CREATE TABLE {_TABLE} (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            due_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, id)
        )
        """
    )
    op.execute(f"CREATE INDEX agent_creations_due ON {_TABLE} (due_time)")
    op.execute(tenant_policy_sql(_TABLE))
    op.execute(f"REVOKE ALL ON {_TABLE} FROM {_SERVICE}")
    op.execute(grant_sql("SELECT, INSERT, DELETE", _TABLE, _SERVICE))
    op.execute(worker_policy_sql(_TABLE, "gateway"))
    read = ["project_id", "due_time"]
    op.execute(grant_columns_sql("SELECT", read, _TABLE, _WORKER))
    op.execute(grant_columns_sql("UPDATE", ["due_time"], _TABLE, _WORKER))
    op.execute(grant_sql("DELETE", "gateway.approvals", _SERVICE))


def downgrade() -> None:
    """Drops the table: the earlier release leaves such creations to the next one of their name."""
    op.execute(f"REVOKE DELETE ON gateway.approvals FROM {_SERVICE}")
    op.execute(f"DROP TABLE {_TABLE}")
