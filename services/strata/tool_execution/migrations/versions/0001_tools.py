"""The registry of a project's own tools.

Revision ID: 0001
"""

from alembic import op

from strata.shared.db import tenant_policy_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the table of tools. Built-in tools are in the code, so it starts empty."""
    # The schema of the arguments is json, not jsonb: its keys are shown to the model in their
    # order. `version` is the hash of the definition, which identifies it everywhere else.
    op.execute(
        """
        CREATE TABLE tools (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            name text COLLATE "C" NOT NULL,
            type text NOT NULL,
            description text NOT NULL,
            source_code text NOT NULL DEFAULT '',
            parameters json NOT NULL,
            tags text[] NOT NULL DEFAULT '{}',
            return_char_limit integer NOT NULL CHECK (return_char_limit > 0),
            default_requires_approval boolean NOT NULL DEFAULT false,
            enable_parallel_execution boolean NOT NULL DEFAULT false,
            effect text NOT NULL,
            pip_requirements text[] NOT NULL DEFAULT '{}',
            secret_names text[] NOT NULL DEFAULT '{}',
            version text COLLATE "C" NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            update_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id),
            CONSTRAINT tools_name UNIQUE (project_id, name)
        )
        """
    )
    op.execute(tenant_policy_sql("tools"))


def downgrade() -> None:
    """Drops the table of tools."""
    op.execute("DROP TABLE tools")
