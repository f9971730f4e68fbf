"""Notes of tenants, a queue that a worker reads across tenants, and a table without tenants."""

from alembic import op

from strata.shared.db import grant_columns_sql, tenant_policy_sql, worker_policy_sql

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE notes (
            project_id text COLLATE "C" NOT NULL,
            note_id text COLLATE "C" NOT NULL,
            body text NOT NULL,
            due timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, note_id)
        );
        CREATE INDEX notes_by_due ON notes (project_id, due);
        CREATE TABLE regions (name text PRIMARY KEY);
        INSERT INTO regions VALUES ('north; south');
        """
    )
    op.execute(tenant_policy_sql("notes"))
    op.execute(worker_policy_sql("notes", "example"))
    op.execute(
        grant_columns_sql(
            "SELECT", ["project_id", "note_id", "due"], "notes", "strata_example_worker"
        )
    )
