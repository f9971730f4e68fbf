"""Webhooks and the queue of their deliveries.

Revision ID: 0011
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables of webhooks."""
    op.execute(
        """
        CREATE TABLE gateway.webhooks (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            request_id text COLLATE "C",
            request_hash bytea NOT NULL,
            url text NOT NULL,
            events text[] NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            sealed_secret bytea NOT NULL,
            enabled boolean NOT NULL DEFAULT true,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id)
        )
        """
    )
    op.execute(
        "CREATE UNIQUE INDEX webhooks_request ON gateway.webhooks (project_id, request_id)"
        " WHERE request_id IS NOT NULL"
    )
    # Read by the statement that ends a run.
    op.execute(
        "CREATE INDEX webhooks_of_run ON gateway.webhooks (project_id, run_id) WHERE enabled"
    )
    op.execute(
        """
        CREATE TABLE gateway.webhook_deliveries (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            webhook_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            event text NOT NULL,
            state text NOT NULL DEFAULT 'PENDING',
            attempts integer NOT NULL DEFAULT 0,
            tries integer NOT NULL DEFAULT 0,
            next_time timestamptz DEFAULT now(),
            last_status integer NOT NULL DEFAULT 0,
            last_error text NOT NULL DEFAULT '',
            last_attempt_time timestamptz,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id),
            CONSTRAINT webhook_deliveries_once UNIQUE (project_id, webhook_id, run_id),
            CONSTRAINT webhook_deliveries_state CHECK (
                state IN ('PENDING', 'DELIVERED', 'FAILED')),
            CONSTRAINT webhook_deliveries_next CHECK (
                (state = 'PENDING') = (next_time IS NOT NULL)),
            CONSTRAINT webhook_deliveries_webhook FOREIGN KEY (project_id, webhook_id)
                REFERENCES gateway.webhooks (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute(
        "CREATE INDEX webhook_deliveries_due ON gateway.webhook_deliveries"
        " (project_id, next_time) WHERE state = 'PENDING'"
    )
    op.execute(
        "CREATE INDEX webhook_deliveries_listed ON gateway.webhook_deliveries"
        " (project_id, create_time DESC, id DESC)"
    )
    for table in ("webhooks", "webhook_deliveries"):
        op.execute(tenant_policy_sql(f"gateway.{table}"))
        op.execute(f"REVOKE ALL ON gateway.{table} FROM strata_gateway")
        op.execute(
            grant_sql("SELECT, INSERT, UPDATE, DELETE", f"gateway.{table}", "strata_gateway")
        )
    op.execute(worker_policy_sql("gateway.webhook_deliveries", "gateway"))
    read = ["project_id", "id", "state", "next_time"]
    op.execute(
        grant_columns_sql("SELECT", read, "gateway.webhook_deliveries", "strata_gateway_worker")
    )


def downgrade() -> None:
    """Drops webhooks with their pending deliveries."""
    op.execute("DROP TABLE gateway.webhook_deliveries")
    op.execute("DROP TABLE gateway.webhooks")
