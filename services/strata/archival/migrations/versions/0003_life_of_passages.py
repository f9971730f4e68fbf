"""Adds versions, near-duplicates, supplied vectors and expiry of passages.

Revision ID: 0003
"""

from alembic import op

from strata.shared.db import grant_columns_sql, tenant_policy_sql, worker_policy_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = ("passage_versions", "passage_likeness", "passage_vectors")
WORKER = "strata_archival_worker"
BANDS = 8


def upgrade() -> None:
    """Creates the tables for versions, near-duplicates, vectors and expiry of passages."""
    # The last change of a passage is in its row; the previous state is moved to the versions.
    op.execute(
        """
        ALTER TABLE passages
            ADD COLUMN change jsonb NOT NULL DEFAULT '{}',
            ADD COLUMN change_digest text COLLATE "C" NOT NULL DEFAULT '',
            ADD COLUMN near_ids text[] NOT NULL DEFAULT '{}',
            ADD COLUMN run_id text COLLATE "C" NOT NULL
                GENERATED ALWAYS AS (coalesce(origin ->> 'run_id', '')) STORED,
            ADD COLUMN message_id text COLLATE "C" NOT NULL
                GENERATED ALWAYS AS (coalesce(origin ->> 'message_id', '')) STORED
        """
    )
    # Deleted passages are listed when asked for, and expire like others.
    op.execute("DROP INDEX passages_by_time")
    op.execute(
        "CREATE INDEX passages_by_time ON passages (project_id, archive_id, create_time, id)"
        " WHERE NOT purge"
    )
    for column in ("run_id", "message_id"):
        op.execute(
            f"CREATE INDEX passages_by_{column} ON passages (project_id, {column})"
            f" WHERE {column} <> '' AND NOT purge"
        )
    op.execute(
        """
        CREATE TABLE passage_versions (
            project_id text COLLATE "C" NOT NULL,
            passage_id text COLLATE "C" NOT NULL,
            revision bigint NOT NULL,
            text text NOT NULL,
            tags text[] NOT NULL,
            metadata jsonb NOT NULL,
            token_count integer NOT NULL,
            change jsonb NOT NULL,
            request_id text COLLATE "C" NOT NULL,
            request_digest text COLLATE "C" NOT NULL,
            deleted boolean NOT NULL,
            create_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, passage_id, revision),
            FOREIGN KEY (project_id, passage_id) REFERENCES passages (project_id, id)
                ON DELETE CASCADE
        )
        """
    )
    # Texts of one archive that share a band may be nearly the same: see domain/near_duplicates.py.
    # The value of a band includes the archive. The indexes also include the project: without it the
    # planner intersects the rows of a band with all rows of the project.
    bands = ", ".join(f"band_{number} bigint NOT NULL" for number in range(BANDS))
    op.execute(
        f"""
        CREATE TABLE passage_likeness (
            project_id text COLLATE "C" NOT NULL,
            passage_id text COLLATE "C" NOT NULL,
            sketch bit(256) NOT NULL,
            {bands},
            PRIMARY KEY (project_id, passage_id),
            FOREIGN KEY (project_id, passage_id) REFERENCES passages (project_id, id)
                ON DELETE CASCADE
        )
        """
    )
    for number in range(BANDS):
        op.execute(
            f"CREATE INDEX passage_likeness_{number}"
            f" ON passage_likeness (project_id, band_{number})"
        )
    # Vectors that were supplied with their passages: 32-bit floats, little-endian. They are kept so
    # that the index can be rebuilt.
    op.execute(
        """
        CREATE TABLE passage_vectors (
            project_id text COLLATE "C" NOT NULL,
            passage_id text COLLATE "C" NOT NULL,
            model text COLLATE "C" NOT NULL,
            vector bytea NOT NULL,
            PRIMARY KEY (project_id, passage_id),
            FOREIGN KEY (project_id, passage_id) REFERENCES passages (project_id, id)
                ON DELETE CASCADE
        )
        """
    )
    op.execute("ALTER TABLE passage_vectors ALTER COLUMN vector SET STORAGE EXTERNAL")
    for table in TABLES:
        op.execute(tenant_policy_sql(table))
    # The worker finds archives with expired passages; it destroys these in a transaction of the
    # project.
    op.execute("CREATE INDEX archives_expiring ON archives (project_id, id) WHERE time_to_live > 0")
    op.execute(worker_policy_sql("archives", "archival", using="time_to_live > 0"))
    op.execute(
        grant_columns_sql("SELECT", ["project_id", "id", "time_to_live"], "archives", WORKER)
    )
    op.execute(
        grant_columns_sql("SELECT", ["archive_id", "create_time", "purge"], "passages", WORKER)
    )


def downgrade() -> None:
    """Drops what the upgrade created; deleted passages stay deleted."""
    op.execute("REVOKE SELECT (archive_id, create_time, purge) ON passages FROM " + WORKER)
    op.execute("REVOKE SELECT (project_id, id, time_to_live) ON archives FROM " + WORKER)
    op.execute("DROP POLICY worker ON archives")
    op.execute("DROP INDEX archives_expiring")
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP INDEX passages_by_time")
    op.execute(
        "CREATE INDEX passages_by_time ON passages (project_id, archive_id, create_time, id)"
        " WHERE NOT deleted"
    )
    op.execute(
        "ALTER TABLE passages DROP COLUMN run_id, DROP COLUMN message_id, DROP COLUMN near_ids,"
        " DROP COLUMN change_digest, DROP COLUMN change"
    )
