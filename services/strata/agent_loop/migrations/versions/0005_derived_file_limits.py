"""Derives limits of open files from the context window unless a client has set them.

Revision ID: 0005
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Turns the former defaults, 5 files of 50000 characters, into 0: derived."""
    # The policy of the table hides all rows from a session that names no project.
    op.execute("ALTER TABLE agents NO FORCE ROW LEVEL SECURITY")
    op.execute(
        "UPDATE agents SET max_files_open = 0, per_file_view_window_char_limit = 0"
        " WHERE max_files_open = 5 AND per_file_view_window_char_limit = 50000"
    )
    op.execute("ALTER TABLE agents FORCE ROW LEVEL SECURITY")
    op.execute(
        "ALTER TABLE agents ADD CONSTRAINT agents_file_limits"
        " CHECK (max_files_open >= 0 AND per_file_view_window_char_limit >= 0)"
    )


def downgrade() -> None:
    """Restores the former defaults, because an older release does not support 0."""
    op.execute("ALTER TABLE agents DROP CONSTRAINT agents_file_limits")
    op.execute("ALTER TABLE agents NO FORCE ROW LEVEL SECURITY")
    op.execute(
        "UPDATE agents SET"
        " max_files_open = CASE max_files_open WHEN 0 THEN 5 ELSE max_files_open END,"
        " per_file_view_window_char_limit = CASE per_file_view_window_char_limit"
        " WHEN 0 THEN 50000 ELSE per_file_view_window_char_limit END"
    )
    op.execute("ALTER TABLE agents FORCE ROW LEVEL SECURITY")
