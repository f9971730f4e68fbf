"""A column more, and a function whose body holds semicolons."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("ALTER TABLE notes ADD COLUMN tags jsonb NOT NULL DEFAULT '[]'")
    op.execute(
        """
        CREATE FUNCTION shout(said text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
        BEGIN
            said := upper(said);
            RETURN said;
        END
        $$;
        """
    )
