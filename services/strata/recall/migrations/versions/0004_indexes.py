"""Records which index of the messages serves, and which is rebuilt.

Revision ID: 0004
"""

from alembic import op

from strata.shared.search.reindexing import schema

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables of indexes."""
    for statement in schema.create_sql("recall"):
        op.execute(statement)


def downgrade() -> None:
    """Drops the tables of indexes."""
    for statement in schema.drop_sql():
        op.execute(statement)
