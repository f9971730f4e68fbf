"""Limits the files that can be opened by the space of the context window.

Revision ID: 0008
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the limits; 0 until the agent loop has sent those of an agent."""
    op.execute(
        "ALTER TABLE prepared_agents ADD COLUMN prompt_files_bytes bigint NOT NULL DEFAULT 0,"
        " ADD COLUMN max_files_open integer NOT NULL DEFAULT 0,"
        " ADD COLUMN file_view_chars integer NOT NULL DEFAULT 0"
    )


def downgrade() -> None:
    """Drops the limits."""
    op.execute(
        "ALTER TABLE prepared_agents DROP COLUMN file_view_chars, DROP COLUMN max_files_open,"
        " DROP COLUMN prompt_files_bytes"
    )
