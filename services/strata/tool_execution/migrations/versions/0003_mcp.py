"""Adds MCP servers and their tools.

Revision ID: 0003
"""

from alembic import op

from strata.shared.db import tenant_policy_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the tables, and the columns of tools that tools of MCP servers need."""
    op.execute(
        """
        CREATE TABLE mcp_servers (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            name text COLLATE "C" NOT NULL,
            transport text NOT NULL,
            command text[] NOT NULL DEFAULT '{}',
            environment json NOT NULL DEFAULT '{}',
            environment_secrets json NOT NULL DEFAULT '{}',
            url text NOT NULL DEFAULT '',
            headers json NOT NULL DEFAULT '{}',
            header_secrets json NOT NULL DEFAULT '{}',
            bearer_secret text NOT NULL DEFAULT '',
            enabled boolean NOT NULL DEFAULT true,
            call_timeout integer NOT NULL CHECK (call_timeout > 0),
            max_calls integer NOT NULL CHECK (max_calls > 0),
            error text NOT NULL DEFAULT '',
            last_contact_time timestamptz,
            create_time timestamptz NOT NULL DEFAULT now(),
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id),
            CONSTRAINT mcp_servers_name UNIQUE (project_id, name)
        )
        """
    )
    # The present definition of a tool. The approved one is in its row of the registry.
    op.execute(
        """
        CREATE TABLE mcp_tools (
            project_id text COLLATE "C" NOT NULL,
            server_id text COLLATE "C" NOT NULL,
            name text COLLATE "C" NOT NULL,
            tool_name text COLLATE "C" NOT NULL,
            state text NOT NULL,
            reason text NOT NULL DEFAULT '',
            description text NOT NULL DEFAULT '',
            parameters json NOT NULL DEFAULT '{}',
            digest text COLLATE "C" NOT NULL,
            approved_digest text COLLATE "C" NOT NULL DEFAULT '',
            PRIMARY KEY (project_id, server_id, name),
            FOREIGN KEY (project_id, server_id) REFERENCES mcp_servers (project_id, id)
                ON DELETE CASCADE
        )
        """
    )
    # A tool with a reason in this column is neither offered nor run.
    op.execute(
        """
        ALTER TABLE tools
            ADD COLUMN mcp_server_id text COLLATE "C" NOT NULL DEFAULT '',
            ADD COLUMN mcp_name text COLLATE "C" NOT NULL DEFAULT '',
            ADD COLUMN mcp_digest text COLLATE "C" NOT NULL DEFAULT '',
            ADD COLUMN blocked text NOT NULL DEFAULT ''
        """
    )
    op.execute(
        "CREATE INDEX tools_of_mcp_server ON tools (project_id, mcp_server_id)"
        " WHERE mcp_server_id <> ''"
    )
    for table in ("mcp_servers", "mcp_tools"):
        op.execute(tenant_policy_sql(table))


def downgrade() -> None:
    """Drops the tables, and the tools of such servers, which could no longer run."""
    op.execute("ALTER TABLE tools NO FORCE ROW LEVEL SECURITY")
    op.execute("DELETE FROM tools WHERE mcp_server_id <> ''")
    op.execute("ALTER TABLE tools FORCE ROW LEVEL SECURITY")
    op.execute("DROP INDEX tools_of_mcp_server")
    op.execute(
        "ALTER TABLE tools DROP COLUMN mcp_server_id, DROP COLUMN mcp_name,"
        " DROP COLUMN mcp_digest, DROP COLUMN blocked"
    )
    op.execute("DROP TABLE mcp_tools")
    op.execute("DROP TABLE mcp_servers")
