"""Adds functions, vectors for search, secrets, and stored answers for repeated requests.

Revision ID: 0002
"""

from alembic import op

from strata.shared.db import (
    grant_columns_sql,
    grant_sql,
    tenant_policy_sql,
    worker_policy_sql,
)

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

WORKER = "strata_tool_execution_worker"


def upgrade() -> None:
    """Adds the columns and the tables. Tools were never stored before, so none is changed."""
    # A vector is valid for the text whose hash is stored with it; the hash includes the model.
    op.execute(
        """
        ALTER TABLE tools
            ADD COLUMN function_name text NOT NULL DEFAULT '',
            ADD COLUMN vector bytea,
            ADD COLUMN vector_hash text COLLATE "C" NOT NULL DEFAULT ''
        """
    )
    op.execute(
        """
        CREATE TABLE secrets (
            project_id text COLLATE "C" NOT NULL,
            name text COLLATE "C" NOT NULL,
            sealed bytea NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, name)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE requests (
            project_id text COLLATE "C" NOT NULL,
            request_id text COLLATE "C" NOT NULL,
            digest text NOT NULL,
            response text NOT NULL DEFAULT '',
            create_time timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT requests_once PRIMARY KEY (project_id, request_id)
        )
        """
    )
    op.execute("CREATE INDEX requests_by_age ON requests (create_time)")
    for table in ("secrets", "requests"):
        op.execute(tenant_policy_sql(table))
    # The worker deletes old requests of every project; it cannot read answers or secrets.
    op.execute(worker_policy_sql("requests", "tool_execution"))
    op.execute(grant_sql("DELETE", "requests", WORKER))
    op.execute(
        grant_columns_sql("SELECT", ["project_id", "request_id", "create_time"], "requests", WORKER)
    )


def downgrade() -> None:
    """Drops them."""
    op.execute("DROP TABLE requests")
    op.execute("DROP TABLE secrets")
    op.execute(
        "ALTER TABLE tools DROP COLUMN function_name, DROP COLUMN vector, DROP COLUMN vector_hash"
    )
