"""Chunks of files are searched with the headings above them.

Revision ID: 0007
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the heading; existing chunks get theirs when core memory sends them again."""
    op.execute("ALTER TABLE file_chunks ADD COLUMN heading text NOT NULL DEFAULT ''")
    _search("heading || E'\\n' || text")


def downgrade() -> None:
    """Removes the heading."""
    _search("text")
    # A later upgrade must not treat chunks without headings as unchanged.
    # The policy of the table hides all rows from a session that names no project.
    op.execute("ALTER TABLE chunk_sets NO FORCE ROW LEVEL SECURITY")
    op.execute("UPDATE chunk_sets SET digest = ''")
    op.execute("ALTER TABLE chunk_sets FORCE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE file_chunks DROP COLUMN heading")


def _search(expression: str) -> None:
    op.execute("ALTER TABLE file_chunks DROP COLUMN search_vector")
    op.execute(
        f"""
        ALTER TABLE file_chunks ADD COLUMN search_vector tsvector NOT NULL GENERATED ALWAYS AS (
            to_tsvector('english'::regconfig, left({expression}, 100000))
        ) STORED
        """
    )
