"""Contents that no file uses can be deleted after the request that deleted their files.

Revision ID: 0013
"""

from alembic import op

from strata.shared.db import grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

WORKER = "strata_core_memory_worker"


def upgrade() -> None:
    """Creates the queue of contents to delete."""
    op.execute(
        """
        CREATE TABLE dropped_contents (
            project_id text COLLATE "C" NOT NULL,
            content_hash text COLLATE "C" NOT NULL,
            due_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, content_hash)
        )
        """
    )
    op.execute("CREATE INDEX dropped_contents_due ON dropped_contents (due_time)")
    op.execute(tenant_policy_sql("dropped_contents"))
    op.execute(worker_policy_sql("dropped_contents", "core_memory"))
    op.execute(grant_sql("SELECT, UPDATE", "dropped_contents", WORKER))


def downgrade() -> None:
    """Drops the queue; contents that wait in it stay stored."""
    op.execute("DROP TABLE dropped_contents")
