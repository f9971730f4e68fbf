"""Adds retention of run events and of deliveries; counts delayed runs separately.

Revision ID: 0014
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, worker_policy_sql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_OPEN = "state IN ('QUEUED', 'RUNNING', 'CANCELLING')"
_WORKER = "strata_gateway_worker"


def upgrade() -> None:
    """Adds the columns for retention, and the start time to the index of open runs."""
    op.execute("ALTER TABLE gateway.runs ADD COLUMN events_deleted boolean NOT NULL DEFAULT false")
    op.execute(
        "CREATE INDEX runs_with_events ON gateway.runs (project_id, finish_time)"
        " WHERE finish_time IS NOT NULL AND NOT events_deleted"
    )
    op.execute(grant_columns_sql("SELECT", ["events_deleted"], "gateway.runs", _WORKER))
    op.execute(grant_sql("DELETE", "gateway.run_events", "strata_gateway"))
    op.execute(worker_policy_sql("gateway.webhooks", "gateway"))
    op.execute(grant_columns_sql("SELECT", ["project_id", "run_id"], "gateway.webhooks", _WORKER))
    op.execute(
        "CREATE INDEX webhooks_of_one_run ON gateway.webhooks (project_id, create_time)"
        " WHERE run_id <> ''"
    )
    # Open runs are counted without those that start later.
    op.execute("DROP INDEX gateway.runs_open")
    op.execute(
        "CREATE INDEX runs_open ON gateway.runs (project_id, run_at)"
        f" WHERE {_OPEN} AND kind <> 'SLEEPTIME'"
    )


def downgrade() -> None:
    """Keeps all events and deliveries again."""
    op.execute("DROP INDEX gateway.runs_open")
    op.execute(
        f"CREATE INDEX runs_open ON gateway.runs (project_id) WHERE {_OPEN} AND kind <> 'SLEEPTIME'"
    )
    op.execute("DROP INDEX gateway.webhooks_of_one_run")
    op.execute(f"REVOKE SELECT (project_id, run_id) ON gateway.webhooks FROM {_WORKER}")
    op.execute("DROP POLICY worker ON gateway.webhooks")
    op.execute("REVOKE DELETE ON gateway.run_events FROM strata_gateway")
    op.execute(f"REVOKE SELECT (events_deleted) ON gateway.runs FROM {_WORKER}")
    op.execute("DROP INDEX gateway.runs_with_events")
    op.execute("ALTER TABLE gateway.runs DROP COLUMN events_deleted")
