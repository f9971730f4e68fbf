"""Lets an agent follow another one: it gets and loses the same blocks.

Revision ID: 0010
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the relation of followers, and the triggers that keep the blocks of both the same."""
    op.execute('ALTER TABLE prepared_agents ADD COLUMN follows_agent_id text COLLATE "C"')
    op.execute(
        "CREATE INDEX prepared_agents_followers ON prepared_agents (project_id, follows_agent_id)"
        " WHERE follows_agent_id IS NOT NULL"
    )
    # The row of the followed agent is locked by every attachment (by the foreign key) and,
    # exclusively, by an agent that begins to follow it: no block is attached in between.
    op.execute(
        """
        CREATE FUNCTION attach_to_followers() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NOT EXISTS (
                SELECT FROM attached a JOIN core_memory.prepared_agents f
                    ON f.project_id = a.project_id AND f.follows_agent_id = a.agent_id) THEN
                RETURN NULL;
            END IF;
            INSERT INTO core_memory.attachments
                (project_id, agent_id, block_id, label, create_time)
            SELECT a.project_id, f.agent_id, a.block_id, a.label, a.create_time
              FROM attached a
              JOIN core_memory.prepared_agents f
                ON f.project_id = a.project_id AND f.follows_agent_id = a.agent_id
             ORDER BY a.position
                ON CONFLICT DO NOTHING;
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        """
        CREATE FUNCTION detach_from_followers() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NOT EXISTS (
                SELECT FROM detached d JOIN core_memory.prepared_agents f
                    ON f.project_id = d.project_id AND f.follows_agent_id = d.agent_id) THEN
                RETURN NULL;
            END IF;
            WITH gone AS (
                DELETE FROM core_memory.attachments x
                 USING detached d JOIN core_memory.prepared_agents f
                    ON f.project_id = d.project_id AND f.follows_agent_id = d.agent_id
                 WHERE x.project_id = f.project_id AND x.agent_id = f.agent_id
                   AND x.block_id = d.block_id
                RETURNING x.*
            )
            INSERT INTO core_memory.attachment_history
                (project_id, agent_id, block_id, label, position, attach_time, detach_time)
            SELECT gone.project_id, gone.agent_id, gone.block_id, gone.label, gone.position,
                   gone.create_time, greatest(gone.create_time, now())
              FROM gone JOIN core_memory.blocks b
                ON b.project_id = gone.project_id AND b.id = gone.block_id;
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER attachments_of_followers AFTER INSERT ON attachments"
        " REFERENCING NEW TABLE AS attached"
        " FOR EACH STATEMENT EXECUTE FUNCTION attach_to_followers()"
    )
    op.execute(
        "CREATE TRIGGER detachments_of_followers AFTER DELETE ON attachments"
        " REFERENCING OLD TABLE AS detached"
        " FOR EACH STATEMENT EXECUTE FUNCTION detach_from_followers()"
    )


def downgrade() -> None:
    """Drops the relation; followers keep the blocks that they have."""
    op.execute("DROP TRIGGER attachments_of_followers ON attachments")
    op.execute("DROP TRIGGER detachments_of_followers ON attachments")
    op.execute("DROP FUNCTION attach_to_followers()")
    op.execute("DROP FUNCTION detach_from_followers()")
    op.execute("DROP INDEX prepared_agents_followers")
    op.execute("ALTER TABLE prepared_agents DROP COLUMN follows_agent_id")
