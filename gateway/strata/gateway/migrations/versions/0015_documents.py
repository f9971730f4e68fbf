"""Adds marks of files that memory agents read, beside those of conversations.

Revision ID: 0015
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_COLUMNS = ("file_id", "file_name", "block_label")


def upgrade() -> None:
    """Adds the data of the file; empty in the marks of conversations."""
    for column in _COLUMNS:
        collation = "" if column == "file_name" else ' COLLATE "C"'
        op.execute(
            f"ALTER TABLE gateway.memory_agents ADD COLUMN {column} text{collation}"
            " NOT NULL DEFAULT ''"
        )


def downgrade() -> None:
    """Drops the marks of files, which earlier releases cannot use."""
    op.execute("ALTER TABLE gateway.memory_agents NO FORCE ROW LEVEL SECURITY")
    op.execute("DELETE FROM gateway.memory_agents WHERE file_id <> ''")
    op.execute("ALTER TABLE gateway.memory_agents FORCE ROW LEVEL SECURITY")
    for column in reversed(_COLUMNS):
        op.execute(f"ALTER TABLE gateway.memory_agents DROP COLUMN {column}")
