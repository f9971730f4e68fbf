"""Records the generations of indexes and their rebuilds; archives can have their own model.

Revision ID: 0004
"""

from alembic import op

from strata.shared.search.reindexing import schema

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables of indexes, and records for each archive where its vectors are."""
    for statement in schema.create_sql("archival"):
        op.execute(statement)
    # The own model of an archive; empty if it follows the default. While an archive moves from one
    # model to another, the index of the other model is written, too.
    op.execute(
        "ALTER TABLE archives"
        " ADD COLUMN own_model text COLLATE \"C\" NOT NULL DEFAULT '',"
        ' ADD COLUMN other_model text COLLATE "C"'
    )


def downgrade() -> None:
    """Drops the tables; every archive has the default model again."""
    op.execute("ALTER TABLE archives DROP COLUMN own_model, DROP COLUMN other_model")
    for statement in schema.drop_sql():
        op.execute(statement)
