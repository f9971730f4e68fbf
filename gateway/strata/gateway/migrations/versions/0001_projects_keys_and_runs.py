"""Organizations, projects, API keys, runs and their events.

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

TABLES = ("projects", "api_keys", "runs", "run_events")
# An administrator acts in the organization; the setting is local to the transaction.
ORGANIZATION = "organization_id = NULLIF(current_setting('strata.organization_id', true), '')"


def upgrade() -> None:
    """Creates the tables of the service."""
    _organizations()
    _projects()
    _api_keys()
    _runs()
    _run_events()


def _organizations() -> None:
    op.execute(
        """
        CREATE TABLE gateway.organizations (
            organization_id text COLLATE "C" PRIMARY KEY,
            name text NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now()
        )
        """
    )
    op.execute("ALTER TABLE gateway.organizations ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE gateway.organizations FORCE ROW LEVEL SECURITY")
    _organization_policy("organizations")
    op.execute(grant_sql("SELECT, INSERT, UPDATE", "gateway.organizations", "strata_gateway"))


def _projects() -> None:
    op.execute(
        """
        CREATE TABLE gateway.projects (
            project_id text COLLATE "C" PRIMARY KEY,
            organization_id text COLLATE "C" NOT NULL,
            name text NOT NULL,
            request_id text COLLATE "C",
            create_time timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT projects_name UNIQUE (organization_id, name)
        )
        """
    )
    op.execute(
        "CREATE UNIQUE INDEX projects_request ON gateway.projects (organization_id, request_id)"
        " WHERE request_id IS NOT NULL"
    )
    op.execute(
        "CREATE INDEX projects_of_organization ON gateway.projects (organization_id, project_id)"
    )
    _tenant("projects", "SELECT, INSERT, UPDATE")
    _organization_policy("projects")


def _api_keys() -> None:
    op.execute(
        """
        CREATE TABLE gateway.api_keys (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            organization_id text COLLATE "C" NOT NULL,
            name text NOT NULL,
            secret_hash bytea NOT NULL,
            scopes text[] NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            revoke_time timestamptz,
            expire_time timestamptz,
            PRIMARY KEY (project_id, id),
            CONSTRAINT api_keys_id UNIQUE (id)
        )
        """
    )
    _tenant("api_keys", "SELECT, INSERT, UPDATE")
    _organization_policy("api_keys")
    # The only table that is read before the tenant is known: by id, and only the columns needed to
    # check a key. The hash is useless without the pepper, which is not in the database.
    op.execute(worker_policy_sql("gateway.api_keys", "gateway"))
    checked = [
        "project_id", "id", "organization_id", "secret_hash", "scopes", "revoke_time",
        "expire_time",
    ]  # fmt: skip
    op.execute(grant_columns_sql("SELECT", checked, "gateway.api_keys", "strata_gateway_worker"))


def _runs() -> None:
    op.execute(
        """
        CREATE TABLE gateway.runs (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            organization_id text COLLATE "C" NOT NULL,
            principal text NOT NULL,
            scopes text[] NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            conversation_id text COLLATE "C" NOT NULL,
            kind text NOT NULL,
            state text NOT NULL,
            request_id text COLLATE "C",
            payload bytea NOT NULL,
            payload_hash bytea NOT NULL,
            max_steps integer NOT NULL,
            owner text,
            lease_until timestamptz,
            attempt integer NOT NULL,
            run_at timestamptz NOT NULL DEFAULT now(),
            deadline_time timestamptz,
            last_sequence bigint NOT NULL DEFAULT 0,
            stop_reason text NOT NULL DEFAULT 'UNSPECIFIED',
            error_reason text,
            error_message text,
            error_retryable boolean,
            step_count integer NOT NULL DEFAULT 0,
            prompt_tokens bigint NOT NULL DEFAULT 0,
            completion_tokens bigint NOT NULL DEFAULT 0,
            total_tokens bigint NOT NULL DEFAULT 0,
            cached_input_tokens bigint NOT NULL DEFAULT 0,
            cache_write_tokens bigint NOT NULL DEFAULT 0,
            reasoning_tokens bigint NOT NULL DEFAULT 0,
            usage_estimated boolean NOT NULL DEFAULT false,
            create_time timestamptz NOT NULL DEFAULT now(),
            start_time timestamptz,
            finish_time timestamptz,
            PRIMARY KEY (project_id, id),
            CONSTRAINT runs_state CHECK (state IN (
                'QUEUED', 'RUNNING', 'CANCELLING', 'COMPLETED', 'FAILED', 'CANCELLED'
            )),
            CONSTRAINT runs_lease CHECK (
                (state IN ('RUNNING', 'CANCELLING')) = (lease_until IS NOT NULL)
            )
        ) WITH (fillfactor = 70)
        """
    )
    # The lock on a conversation: at most one run of it is active.
    op.execute(
        "CREATE UNIQUE INDEX runs_one_active ON gateway.runs (project_id, conversation_id)"
        " WHERE state IN ('RUNNING', 'CANCELLING')"
    )
    op.execute(
        "CREATE UNIQUE INDEX runs_request ON gateway.runs (project_id, request_id)"
        " WHERE request_id IS NOT NULL"
    )
    op.execute(
        "CREATE INDEX runs_queue ON gateway.runs (project_id, conversation_id, id)"
        " WHERE state = 'QUEUED'"
    )
    op.execute(
        "CREATE INDEX runs_open ON gateway.runs (project_id)"
        " WHERE state IN ('QUEUED', 'RUNNING', 'CANCELLING')"
    )
    op.execute("CREATE INDEX runs_ready ON gateway.runs (run_at) WHERE state = 'QUEUED'")
    # Not lease_until: it changes at every heartbeat, and only a handful of runs are active.
    op.execute(
        "CREATE INDEX runs_held ON gateway.runs (owner) WHERE state IN ('RUNNING', 'CANCELLING')"
    )
    op.execute("CREATE INDEX runs_of_agent ON gateway.runs (project_id, agent_id, id)")
    op.execute(
        "CREATE INDEX runs_of_conversation ON gateway.runs (project_id, conversation_id, id)"
    )
    op.execute(
        "CREATE INDEX runs_ended ON gateway.runs (project_id, finish_time)"
        " WHERE finish_time IS NOT NULL"
    )
    _tenant("runs", "SELECT, INSERT, UPDATE")
    # Leases are renewed and taken over for all tenants at once; this role cannot read the content
    # of runs.
    op.execute(worker_policy_sql("gateway.runs", "gateway"))
    read = [
        "project_id", "id", "conversation_id", "state", "owner", "lease_until", "attempt",
        "run_at", "start_time", "deadline_time",
    ]  # fmt: skip
    written = ["state", "owner", "lease_until", "attempt", "start_time", "deadline_time"]
    op.execute(grant_columns_sql("SELECT", read, "gateway.runs", "strata_gateway_worker"))
    op.execute(grant_columns_sql("UPDATE", written, "gateway.runs", "strata_gateway_worker"))


def _run_events() -> None:
    op.execute(
        """
        CREATE TABLE gateway.run_events (
            project_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            sequence bigint NOT NULL,
            payload bytea NOT NULL,
            PRIMARY KEY (project_id, run_id, sequence)
        )
        """
    )
    _tenant("run_events", "SELECT, INSERT")


def _tenant(table: str, privileges: str) -> None:
    op.execute(tenant_policy_sql(f"gateway.{table}"))
    op.execute(f"REVOKE ALL ON gateway.{table} FROM strata_gateway")
    op.execute(grant_sql(privileges, f"gateway.{table}", "strata_gateway"))


def _organization_policy(table: str) -> None:
    op.execute(
        f"CREATE POLICY organization ON gateway.{table}"
        f" USING ({ORGANIZATION}) WITH CHECK ({ORGANIZATION})"
    )


def downgrade() -> None:
    """Drops the tables of the service."""
    for table in (*TABLES, "organizations"):
        op.execute(f"DROP TABLE gateway.{table}")
