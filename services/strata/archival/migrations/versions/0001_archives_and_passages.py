"""Archives, passages with their tags, and the attachment of archives to agents.

Revision ID: 0001
"""

from alembic import op

from strata.shared.db import grant_columns_sql, tenant_policy_sql, worker_policy_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = ("agents", "archives", "agent_archives", "passages", "archive_tags")
WORKER = "strata_archival_worker"


def upgrade() -> None:
    """Creates the tables of the service."""
    # The existing agents, as reported by the agent loop: nothing is stored for unknown or deleted
    # agents.
    op.execute(
        """
        CREATE TABLE agents (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, agent_id)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE archives (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            name text COLLATE "C" NOT NULL,
            description text NOT NULL,
            embedding_model text NOT NULL,
            embedding_dim integer NOT NULL,
            time_to_live bigint NOT NULL,
            own_agent_id text COLLATE "C" NOT NULL,
            request_id text COLLATE "C" NOT NULL,
            passage_count bigint NOT NULL,
            create_time timestamptz NOT NULL,
            update_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, id),
            CONSTRAINT archives_name UNIQUE (project_id, name)
        )
        """
    )
    op.execute(
        "CREATE UNIQUE INDEX archives_own ON archives (project_id, own_agent_id)"
        " WHERE own_agent_id <> ''"
    )
    op.execute(
        "CREATE UNIQUE INDEX archives_request ON archives (project_id, request_id)"
        " WHERE request_id <> ''"
    )
    op.execute(
        """
        CREATE TABLE agent_archives (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            archive_id text COLLATE "C" NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, agent_id, archive_id),
            CONSTRAINT agent_archives_agent FOREIGN KEY (project_id, agent_id)
                REFERENCES agents (project_id, agent_id) ON DELETE CASCADE,
            FOREIGN KEY (project_id, archive_id) REFERENCES archives (project_id, id)
                ON DELETE CASCADE
        )
        """
    )
    op.execute("CREATE INDEX agent_archives_by_archive ON agent_archives (project_id, archive_id)")
    # A passage is in the index when indexed_revision has caught up with revision. A deleted passage
    # stays at least until the index has deleted it; a purged one is then removed.
    op.execute(
        """
        CREATE TABLE passages (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            archive_id text COLLATE "C" NOT NULL,
            text text NOT NULL,
            tags text[] NOT NULL,
            metadata jsonb NOT NULL,
            origin jsonb NOT NULL,
            content_hash text COLLATE "C" NOT NULL,
            request_id text COLLATE "C" NOT NULL,
            change_request_id text COLLATE "C" NOT NULL DEFAULT '',
            token_count integer NOT NULL,
            revision bigint NOT NULL,
            indexed_revision bigint NOT NULL,
            deleted boolean NOT NULL,
            purge boolean NOT NULL,
            create_time timestamptz NOT NULL,
            update_time timestamptz NOT NULL,
            search_vector tsvector NOT NULL GENERATED ALWAYS AS (
                to_tsvector('english'::regconfig, left(text, 100000))
                || to_tsvector('simple'::regconfig, left(text, 100000))
            ) STORED,
            PRIMARY KEY (project_id, id)
        )
        """
    )
    op.execute(
        "CREATE UNIQUE INDEX passages_content ON passages (project_id, archive_id, content_hash)"
        " WHERE NOT deleted"
    )
    op.execute(
        "CREATE UNIQUE INDEX passages_request ON passages (project_id, request_id)"
        " WHERE request_id <> ''"
    )
    op.execute(
        "CREATE INDEX passages_by_time ON passages (project_id, archive_id, create_time, id)"
        " WHERE NOT deleted"
    )
    op.execute(
        "CREATE INDEX passages_pending ON passages (update_time) WHERE indexed_revision < revision"
    )
    op.execute(
        "CREATE INDEX passages_pending_here ON passages (project_id, archive_id)"
        " WHERE indexed_revision < revision"
    )
    op.execute(
        """
        CREATE TABLE archive_tags (
            project_id text COLLATE "C" NOT NULL,
            archive_id text COLLATE "C" NOT NULL,
            tag text COLLATE "C" NOT NULL,
            count bigint NOT NULL,
            PRIMARY KEY (project_id, archive_id, tag),
            FOREIGN KEY (project_id, archive_id) REFERENCES archives (project_id, id)
                ON DELETE CASCADE
        )
        """
    )
    for table in TABLES:
        op.execute(tenant_policy_sql(table))
    # The indexer looks for work over all projects; it reads the text of a passage in a
    # transaction of its project.
    op.execute(worker_policy_sql("passages", "archival"))
    op.execute(
        grant_columns_sql(
            "SELECT",
            ["project_id", "id", "revision", "indexed_revision", "update_time"],
            "passages",
            WORKER,
        )
    )
    op.execute(grant_columns_sql("UPDATE", ["indexed_revision"], "passages", WORKER))


def downgrade() -> None:
    """Drops the tables of the service."""
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {table}")
