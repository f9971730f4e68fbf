"""Keeps deleted blocks and past attachments; records the editor of each version.

Revision ID: 0002
"""

from alembic import op

from strata.shared.db import tenant_policy_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the data for earlier states of blocks, and for undoing edits."""
    op.execute("ALTER TABLE blocks ADD COLUMN delete_time timestamptz")
    # Deleted blocks accumulate; a list of existing blocks must not scan them.
    op.execute("CREATE INDEX blocks_present ON blocks (project_id, id) WHERE delete_time IS NULL")
    op.execute(
        """
        ALTER TABLE block_versions
            ADD COLUMN editor_kind text NOT NULL DEFAULT '',
            ADD COLUMN base_revision bigint NOT NULL DEFAULT 0,
            ADD COLUMN undoes text NOT NULL DEFAULT ''
        """
    )
    op.execute(
        "CREATE INDEX block_versions_that_undo ON block_versions (project_id, block_id)"
        " WHERE undoes <> ''"
    )
    op.execute(
        "CREATE INDEX block_versions_by_run ON block_versions (project_id, run_id)"
        " WHERE run_id <> ''"
    )
    op.execute(
        "CREATE INDEX block_versions_by_agent ON block_versions (project_id, agent_id, create_time)"
        " WHERE agent_id <> ''"
    )
    # Past attachments. The label at that time is in the block's version.
    op.execute(
        """
        CREATE TABLE attachment_history (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            block_id text COLLATE "C" NOT NULL,
            label text COLLATE "C" NOT NULL,
            position bigint NOT NULL,
            attach_time timestamptz NOT NULL,
            detach_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, agent_id, position),
            CONSTRAINT attachment_history_block FOREIGN KEY (project_id, block_id)
                REFERENCES blocks (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute(
        "CREATE INDEX attachment_history_by_block ON attachment_history (project_id, block_id)"
    )
    op.execute(tenant_policy_sql("attachment_history"))


def downgrade() -> None:
    """Drops the data for earlier states; deleted blocks are destroyed.

    Without the time of their deletion they would reappear.
    """
    op.execute("DROP TABLE attachment_history")
    # The policy applies to the owner too; no other session reads while the table is locked.
    op.execute("ALTER TABLE blocks NO FORCE ROW LEVEL SECURITY")
    op.execute("DELETE FROM blocks WHERE delete_time IS NOT NULL")
    op.execute("ALTER TABLE blocks FORCE ROW LEVEL SECURITY")
    op.execute("DROP INDEX block_versions_by_agent")
    op.execute("DROP INDEX block_versions_by_run")
    op.execute(
        "ALTER TABLE block_versions"
        " DROP COLUMN undoes, DROP COLUMN base_revision, DROP COLUMN editor_kind"
    )
    op.execute("ALTER TABLE blocks DROP COLUMN delete_time")
