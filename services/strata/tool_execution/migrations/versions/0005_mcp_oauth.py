"""Adds MCP servers that need tokens of an authorization server.

Revision ID: 0005
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the data with which tokens are requested; existing servers need none."""
    op.execute("ALTER TABLE mcp_servers ADD COLUMN client_credentials json NOT NULL DEFAULT 'null'")


def downgrade() -> None:
    """Drops the data: servers that need a token then refuse requests."""
    op.execute("ALTER TABLE mcp_servers DROP COLUMN client_credentials")
