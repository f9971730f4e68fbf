"""Organization keys, organizations that are created by a call, and usage across projects.

Revision ID: 0006
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, worker_policy_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_ORGANIZATION = "organization_id = NULLIF(current_setting('strata.organization_id', true), '')"
_WORKER = "strata_gateway_worker"
_USAGE = [
    "finish_time", "step_count", "prompt_tokens", "completion_tokens", "total_tokens",
    "cached_input_tokens", "cache_write_tokens", "reasoning_tokens", "usage_estimated",
]  # fmt: skip


def upgrade() -> None:
    """Adds the table of organization keys; existing keys remain keys of their project."""
    op.execute(
        """
        CREATE TABLE gateway.organization_keys (
            organization_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            name text NOT NULL,
            secret_hash bytea NOT NULL,
            scopes text[] NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            revoke_time timestamptz,
            expire_time timestamptz,
            PRIMARY KEY (organization_id, id),
            CONSTRAINT organization_keys_id UNIQUE (id)
        )
        """
    )
    op.execute("ALTER TABLE gateway.organization_keys ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE gateway.organization_keys FORCE ROW LEVEL SECURITY")
    op.execute(
        "CREATE POLICY organization ON gateway.organization_keys"
        f" USING ({_ORGANIZATION}) WITH CHECK ({_ORGANIZATION})"
    )
    op.execute("REVOKE ALL ON gateway.organization_keys FROM strata_gateway")
    op.execute(grant_sql("SELECT, INSERT, UPDATE", "gateway.organization_keys", "strata_gateway"))
    # A key is looked up by its id before the organization is known, as project keys are.
    op.execute(worker_policy_sql("gateway.organization_keys", "gateway"))
    checked = ["organization_id", "id", "secret_hash", "scopes", "revoke_time", "expire_time"]
    op.execute(grant_columns_sql("SELECT", checked, "gateway.organization_keys", _WORKER))

    op.execute('ALTER TABLE gateway.organizations ADD COLUMN request_id text COLLATE "C"')
    # Until now the id of an organization was derived from its name, so names are already unique.
    op.execute("CREATE UNIQUE INDEX organizations_name ON gateway.organizations (name)")
    op.execute(
        "CREATE UNIQUE INDEX organizations_request ON gateway.organizations (request_id)"
        " WHERE request_id IS NOT NULL"
    )
    # Only keys with the scope of the installation list organizations.
    op.execute(worker_policy_sql("gateway.organizations", "gateway"))
    listed = ["organization_id", "name", "request_id", "create_time"]
    op.execute(grant_columns_sql("SELECT", listed, "gateway.organizations", _WORKER))
    # Counters only: usage of several projects is summed in one statement.
    op.execute(grant_columns_sql("SELECT", _USAGE, "gateway.runs", _WORKER))


def downgrade() -> None:
    """Drops organization keys: only project keys remain."""
    op.execute(f"REVOKE SELECT ({', '.join(_USAGE)}) ON gateway.runs FROM {_WORKER}")
    op.execute(f"REVOKE SELECT ON gateway.organizations FROM {_WORKER}")
    op.execute("DROP POLICY worker ON gateway.organizations")
    op.execute("DROP INDEX gateway.organizations_request")
    op.execute("DROP INDEX gateway.organizations_name")
    op.execute("ALTER TABLE gateway.organizations DROP COLUMN request_id")
    op.execute("DROP TABLE gateway.organization_keys")
