"""Places projects on partitions: records which database has the data of a project.

Revision ID: 0016
"""

from alembic import op

from strata.shared.db import grant_columns_sql, worker_policy_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_SERVICE, _WORKER = "strata_gateway", "strata_gateway_worker"


def upgrade() -> None:
    """Adds the partition, which the service sets once and cannot change."""
    op.execute(
        'ALTER TABLE gateway.projects ADD COLUMN partition text COLLATE "C"'
        " NOT NULL DEFAULT 'default'"
    )
    op.execute(f"REVOKE UPDATE ON gateway.projects FROM {_SERVICE}")
    op.execute(grant_columns_sql("UPDATE", ["name"], "gateway.projects", _SERVICE))
    # Read with a key, before the project is known, and counted over all organizations.
    op.execute(worker_policy_sql("gateway.projects", "gateway"))
    op.execute(
        grant_columns_sql("SELECT", ["project_id", "partition"], "gateway.projects", _WORKER)
    )


def downgrade() -> None:
    """Drops the partition: the earlier release has all projects in one database."""
    op.execute(f"REVOKE SELECT (project_id) ON gateway.projects FROM {_WORKER}")
    op.execute("DROP POLICY worker ON gateway.projects")
    op.execute(f"REVOKE UPDATE (name) ON gateway.projects FROM {_SERVICE}")
    op.execute(f"GRANT UPDATE ON gateway.projects TO {_SERVICE}")
    op.execute("ALTER TABLE gateway.projects DROP COLUMN partition")
