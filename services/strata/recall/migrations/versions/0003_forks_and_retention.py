"""Adds forks of conversations, records of compactions, and retention of messages.

Revision ID: 0003
"""

from alembic import op

from strata.shared.db import grant_sql, tenant_policy_sql, worker_policy_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

WORKER = "strata_recall_worker"
TABLES = ("compactions", "retention", "forgotten_messages")


def upgrade() -> None:
    """Adds the origins of forks, the messages that compactions kept, and retention."""
    op.execute(
        "ALTER TABLE messages ADD COLUMN copied_from_id text COLLATE \"C\" NOT NULL DEFAULT ''"
    )
    # Parallel arrays, nearest first: the ancestor conversations of a fork, and the last message of
    # each.
    op.execute(
        "ALTER TABLE windows"
        " ADD COLUMN ancestor_ids text[] COLLATE \"C\" NOT NULL DEFAULT '{}',"
        " ADD COLUMN ancestor_untils bigint[] NOT NULL DEFAULT '{}'"
    )
    # These indexes have few rows: one summary for some hundred messages, and pinned messages.
    op.execute(
        "CREATE INDEX messages_summaries ON messages (project_id, conversation_id, sequence)"
        " WHERE role = 'summary'"
    )
    op.execute(
        "CREATE INDEX messages_pinned ON messages (project_id, agent_id, create_time, id)"
        " WHERE pinned"
    )
    # One row for each summary: the messages that stayed in the window (unknown for older
    # summaries), so that a fork can start there, and the first and last message that it replaces.
    # These are columns, because under row-level security an index on a JSON expression is not used.
    op.execute(
        """
        CREATE TABLE compactions (
            project_id text COLLATE "C" NOT NULL,
            conversation_id text COLLATE "C" NOT NULL,
            sequence bigint NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            kept bigint[],
            first_message_id text COLLATE "C" NOT NULL,
            last_message_id text COLLATE "C" NOT NULL,
            PRIMARY KEY (project_id, conversation_id, sequence)
        )
        """
    )
    op.execute("CREATE INDEX compactions_by_agent ON compactions (project_id, agent_id)")
    for end in ("first", "last"):
        op.execute(f"CREATE INDEX compactions_{end} ON compactions (project_id, {end}_message_id)")
    # The policy applies to the owner too; no other session reads while the table is locked.
    op.execute("ALTER TABLE messages NO FORCE ROW LEVEL SECURITY")
    op.execute(
        """
        INSERT INTO compactions (project_id, conversation_id, sequence, agent_id,
                                 first_message_id, last_message_id)
        SELECT project_id, conversation_id, sequence, agent_id,
               coalesce(parts -> 0 ->> 'first_message_id', ''),
               coalesce(parts -> 0 ->> 'last_message_id', '')
        FROM messages WHERE role = 'summary'
        """
    )
    op.execute("ALTER TABLE messages FORCE ROW LEVEL SECURITY")
    op.execute(
        """
        CREATE TABLE retention (
            project_id text COLLATE "C" NOT NULL,
            days integer NOT NULL CHECK (days >= 0),
            update_time timestamptz NOT NULL,
            PRIMARY KEY (project_id)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE forgotten_messages (
            project_id text COLLATE "C" NOT NULL,
            message_id text COLLATE "C" NOT NULL,
            delete_time timestamptz NOT NULL DEFAULT now(),
            swept boolean NOT NULL DEFAULT false,
            PRIMARY KEY (project_id, message_id)
        )
        """
    )
    op.execute("CREATE INDEX forgotten_messages_by_time ON forgotten_messages (swept, delete_time)")
    for table in TABLES:
        op.execute(tenant_policy_sql(table))
    # The worker sees which projects have retention, and which ids the index has to delete, but no
    # text.
    op.execute(worker_policy_sql("retention", "recall"))
    op.execute(grant_sql("SELECT", "retention", WORKER))
    op.execute(worker_policy_sql("forgotten_messages", "recall"))
    op.execute(grant_sql("SELECT, UPDATE, DELETE", "forgotten_messages", WORKER))


def downgrade() -> None:
    """Drops the tables and columns; forks lose the messages before the fork."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
    for index in ("summaries", "pinned"):
        op.execute(f"DROP INDEX messages_{index}")
    op.execute("ALTER TABLE messages DROP COLUMN copied_from_id")
    op.execute("ALTER TABLE windows DROP COLUMN ancestor_ids, DROP COLUMN ancestor_untils")
