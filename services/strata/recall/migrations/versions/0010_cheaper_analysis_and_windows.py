"""Windows are written without compression, and columns without conditions have no statistics.

The ids of a window's messages are written twice in each turn. From some 45 ids on, PostgreSQL
compressed them each time, which took longer than writing them.

Revision ID: 0010
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# No statement compares, sorts or groups by them, so no plan depends on their statistics.
_WITHOUT_CONDITIONS = {
    "messages": (
        "usage",
        "step_id",
        "group_id",
        "model",
        "client_message_id",
        "search_words",
        "search_pairs",
        "copied_from_id",
    ),
    "windows": ("message_ids",),
}


def upgrade() -> None:
    """Changes settings of columns; an existing window is stored anew by its next turn."""
    _set_statistics(0)
    op.execute("ALTER TABLE windows ALTER COLUMN message_ids SET STORAGE EXTERNAL")


def downgrade() -> None:
    """Restores the defaults."""
    op.execute("ALTER TABLE windows ALTER COLUMN message_ids SET STORAGE EXTENDED")
    _set_statistics(-1)


def _set_statistics(target: int) -> None:
    for table, columns in _WITHOUT_CONDITIONS.items():
        changes = ", ".join(f"ALTER COLUMN {column} SET STATISTICS {target}" for column in columns)
        op.execute(f"ALTER TABLE {table} {changes}")
