"""Adds requests for approval, with which runs can end.

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


def upgrade() -> None:
    """Creates the table of approvals."""
    op.execute(
        """
        CREATE TABLE gateway.approvals (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            conversation_id text COLLATE "C" NOT NULL,
            run_id text COLLATE "C" NOT NULL,
            request bytea NOT NULL,
            expire_time timestamptz NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            decide_time timestamptz,
            answer_run_id text COLLATE "C",
            PRIMARY KEY (project_id, id)
        )
        """
    )
    # The statement that accepts a message checks here whether its conversation waits.
    op.execute(
        "CREATE INDEX approvals_open ON gateway.approvals (project_id, conversation_id)"
        " WHERE decide_time IS NULL"
    )
    op.execute("CREATE INDEX approvals_of_agent ON gateway.approvals (project_id, agent_id, id)")
    op.execute(tenant_policy_sql("gateway.approvals"))
    op.execute("REVOKE ALL ON gateway.approvals FROM strata_gateway")
    op.execute(grant_sql("SELECT, INSERT, UPDATE", "gateway.approvals", "strata_gateway"))
    # The role that claims queued runs must see which conversations wait for a person, and nothing
    # else.
    op.execute(worker_policy_sql("gateway.approvals", "gateway"))
    read = ["project_id", "conversation_id", "decide_time", "expire_time"]
    op.execute(grant_columns_sql("SELECT", read, "gateway.approvals", "strata_gateway_worker"))


def downgrade() -> None:
    """Drops the table of approvals."""
    op.execute("DROP TABLE gateway.approvals")
