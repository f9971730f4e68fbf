"""Adds images of messages: their bytes by hash, and the messages that show them.

Revision ID: 0006
"""

from alembic import op

from strata.shared.db import tenant_policy_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = ("images", "message_images")


def upgrade() -> None:
    """Creates the tables of images."""
    # Separate from the messages, so that reading a window reads no image. The bytes are already
    # compressed; compressing them again would cost time for no benefit.
    op.execute(
        """
        CREATE TABLE images (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            media_type text COLLATE "C" NOT NULL,
            data bytea NOT NULL,
            store_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, id)
        )
        """
    )
    op.execute("ALTER TABLE images ALTER COLUMN data SET STORAGE EXTERNAL")
    # An image whose last row here is deleted is deleted with it.
    op.execute(
        """
        CREATE TABLE message_images (
            project_id text COLLATE "C" NOT NULL,
            message_id text COLLATE "C" NOT NULL,
            image_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            PRIMARY KEY (project_id, message_id, image_id),
            FOREIGN KEY (project_id, image_id) REFERENCES images (project_id, id)
        )
        """
    )
    op.execute("CREATE INDEX message_images_by_image ON message_images (project_id, image_id)")
    op.execute("CREATE INDEX message_images_by_agent ON message_images (project_id, agent_id)")
    for table in TABLES:
        op.execute(tenant_policy_sql(table))


def downgrade() -> None:
    """Drops the images; messages keep their descriptions."""
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {table}")
