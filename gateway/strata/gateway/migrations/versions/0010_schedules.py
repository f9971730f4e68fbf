"""Schedules and their ticks.

Revision ID: 0010
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables of schedules."""
    op.execute(
        """
        CREATE TABLE gateway.schedules (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            name text NOT NULL,
            request_id text COLLATE "C",
            request_hash bytea NOT NULL,
            organization_id text COLLATE "C" NOT NULL,
            principal text NOT NULL,
            scopes text[] NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            conversation_id text COLLATE "C" NOT NULL,
            payload bytea NOT NULL,
            payload_hash bytea NOT NULL,
            max_steps integer NOT NULL,
            on_approval text NOT NULL,
            on_overlap text NOT NULL,
            cron text NOT NULL,
            time_zone text NOT NULL,
            start_time timestamptz,
            state text NOT NULL,
            state_reason text NOT NULL DEFAULT '',
            next_time timestamptz,
            last_run_id text COLLATE "C" NOT NULL DEFAULT '',
            last_time timestamptz,
            create_time timestamptz NOT NULL DEFAULT now(),
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id),
            CONSTRAINT schedules_name UNIQUE (project_id, name),
            CONSTRAINT schedules_state CHECK (
                state IN ('ACTIVE', 'PAUSED', 'DISABLED', 'FINISHED')),
            CONSTRAINT schedules_next CHECK ((state = 'ACTIVE') = (next_time IS NOT NULL)),
            CONSTRAINT schedules_times CHECK ((cron = '') = (start_time IS NOT NULL))
        )
        """
    )
    op.execute(
        "CREATE UNIQUE INDEX schedules_request ON gateway.schedules (project_id, request_id)"
        " WHERE request_id IS NOT NULL"
    )
    # Every gateway looks here once a second, over all projects.
    op.execute(
        "CREATE INDEX schedules_due ON gateway.schedules (next_time, id) WHERE state = 'ACTIVE'"
    )
    # One row for each tick, so that a tick starts only one run.
    op.execute(
        """
        CREATE TABLE gateway.schedule_ticks (
            project_id text COLLATE "C" NOT NULL,
            schedule_id text COLLATE "C" NOT NULL,
            tick_time timestamptz NOT NULL,
            outcome text NOT NULL,
            run_id text COLLATE "C" NOT NULL DEFAULT '',
            reason text NOT NULL DEFAULT '',
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, schedule_id, tick_time),
            CONSTRAINT schedule_ticks_schedule FOREIGN KEY (project_id, schedule_id)
                REFERENCES gateway.schedules (project_id, id) ON DELETE CASCADE
        )
        """
    )
    for table in ("schedules", "schedule_ticks"):
        op.execute(tenant_policy_sql(f"gateway.{table}"))
        op.execute(f"REVOKE ALL ON gateway.{table} FROM strata_gateway")
        op.execute(
            grant_sql("SELECT, INSERT, UPDATE, DELETE", f"gateway.{table}", "strata_gateway")
        )
    op.execute(worker_policy_sql("gateway.schedules", "gateway"))
    read = ["project_id", "id", "state", "next_time"]
    op.execute(grant_columns_sql("SELECT", read, "gateway.schedules", "strata_gateway_worker"))


def downgrade() -> None:
    """Drops schedules; runs that they have started continue."""
    op.execute("DROP TABLE gateway.schedule_ticks")
    op.execute("DROP TABLE gateway.schedules")
