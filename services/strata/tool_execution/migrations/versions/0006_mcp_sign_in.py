"""Adds MCP servers to which a person signs in.

Revision ID: 0006
"""

from alembic import op

from strata.shared.db import tenant_policy_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the sign-in settings, sign-ins that were begun, and their tokens."""
    op.execute("ALTER TABLE mcp_servers ADD COLUMN oauth json NOT NULL DEFAULT 'null'")
    # The data of a state are sealed, and only a hash of the state itself is stored.
    op.execute(
        """
        CREATE TABLE mcp_sign_ins (
            project_id text COLLATE "C" NOT NULL,
            state_hash text COLLATE "C" NOT NULL,
            server_id text COLLATE "C" NOT NULL,
            sealed bytea NOT NULL,
            expire_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, state_hash),
            FOREIGN KEY (project_id, server_id) REFERENCES mcp_servers (project_id, id)
                ON DELETE CASCADE
        )
        """
    )
    op.execute("CREATE INDEX mcp_sign_ins_of_server ON mcp_sign_ins (project_id, server_id)")
    op.execute(
        """
        CREATE TABLE mcp_tokens (
            project_id text COLLATE "C" NOT NULL,
            server_id text COLLATE "C" NOT NULL,
            sealed bytea NOT NULL,
            version integer NOT NULL,
            issuer text NOT NULL,
            principal text NOT NULL,
            sign_in_time timestamptz NOT NULL,
            problem text NOT NULL DEFAULT '',
            PRIMARY KEY (project_id, server_id),
            FOREIGN KEY (project_id, server_id) REFERENCES mcp_servers (project_id, id)
                ON DELETE CASCADE
        )
        """
    )
    for table in ("mcp_sign_ins", "mcp_tokens"):
        op.execute(tenant_policy_sql(table))


def downgrade() -> None:
    """Drops the data: servers that need a token then refuse requests."""
    op.execute("DROP TABLE mcp_tokens")
    op.execute("DROP TABLE mcp_sign_ins")
    op.execute("ALTER TABLE mcp_servers DROP COLUMN oauth")
