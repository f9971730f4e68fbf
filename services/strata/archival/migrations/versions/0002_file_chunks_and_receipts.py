"""Adds chunks of files, and stored answers for repeated requests.

Revision ID: 0002
"""

from alembic import op

from strata.shared.db import grant_columns_sql, grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = ("chunk_sets", "file_chunks", "receipts")
WORKER = "strata_archival_worker"


def upgrade() -> None:
    """Creates the tables of files and of receipts."""
    # The chunks of one version of a file. A set is staged while its chunks arrive, serves when it
    # is complete, and is marked as dropped until the index has deleted it. The chunks below
    # indexed_count are in the index: they are immutable and indexed in their order.
    op.execute(
        """
        CREATE TABLE chunk_sets (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            folder_id text COLLATE "C" NOT NULL,
            file_id text COLLATE "C" NOT NULL,
            state text COLLATE "C" NOT NULL CHECK (state IN ('staged', 'serving', 'dropped')),
            digest text COLLATE "C" NOT NULL DEFAULT '',
            chunk_count integer NOT NULL DEFAULT 0,
            indexed_count integer NOT NULL DEFAULT 0,
            queue_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, id)
        )
        """
    )
    op.execute(
        "CREATE UNIQUE INDEX chunk_sets_serving ON chunk_sets (project_id, file_id)"
        " WHERE state = 'serving'"
    )
    op.execute("CREATE INDEX chunk_sets_by_file ON chunk_sets (project_id, file_id)")
    op.execute("CREATE INDEX chunk_sets_by_folder ON chunk_sets (project_id, folder_id)")
    op.execute(
        "CREATE INDEX chunk_sets_unindexed ON chunk_sets (project_id, folder_id)"
        " WHERE state = 'serving' AND indexed_count < chunk_count"
    )
    op.execute(
        "CREATE INDEX chunk_sets_queue ON chunk_sets (queue_time)"
        " WHERE state <> 'serving' OR indexed_count < chunk_count"
    )
    op.execute(
        """
        CREATE TABLE file_chunks (
            project_id text COLLATE "C" NOT NULL,
            set_id text COLLATE "C" NOT NULL,
            ordinal integer NOT NULL,
            start_line integer NOT NULL,
            end_line integer NOT NULL,
            text text NOT NULL,
            search_vector tsvector NOT NULL GENERATED ALWAYS AS (
                to_tsvector('english'::regconfig, left(text, 100000))
            ) STORED,
            PRIMARY KEY (project_id, set_id, ordinal),
            FOREIGN KEY (project_id, set_id) REFERENCES chunk_sets (project_id, id)
                ON DELETE CASCADE
        )
        """
    )
    op.execute(
        """
        CREATE TABLE receipts (
            project_id text COLLATE "C" NOT NULL,
            request_id text COLLATE "C" NOT NULL,
            digest text COLLATE "C" NOT NULL,
            response jsonb NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, request_id)
        )
        """
    )
    op.execute("CREATE INDEX receipts_by_age ON receipts (create_time)")
    for table in TABLES:
        op.execute(tenant_policy_sql(table))
    # The indexer looks for sets over all projects, and deletes old stored answers; it can read
    # neither chunks nor answers.
    op.execute(worker_policy_sql("chunk_sets", "archival"))
    op.execute(
        grant_columns_sql(
            "SELECT",
            ["project_id", "id", "state", "chunk_count", "indexed_count", "queue_time"],
            "chunk_sets",
            WORKER,
        )
    )
    op.execute(grant_columns_sql("UPDATE", ["indexed_count"], "chunk_sets", WORKER))
    op.execute(worker_policy_sql("receipts", "archival"))
    op.execute(grant_sql("DELETE", "receipts", WORKER))
    op.execute(
        grant_columns_sql("SELECT", ["project_id", "request_id", "create_time"], "receipts", WORKER)
    )


def downgrade() -> None:
    """Drops the tables of files and of receipts."""
    for table in ("file_chunks", "chunk_sets", "receipts"):
        op.execute(f"DROP TABLE {table}")
