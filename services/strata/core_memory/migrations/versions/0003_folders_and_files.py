"""Adds folders, files with their contents, and the files that agents have open.

Revision ID: 0003
"""

from alembic import op

from strata.shared.db import (
    grant_columns_sql,
    grant_sql,
    tenant_policy_sql,
    worker_policy_sql,
)

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = (
    "folders",
    "folder_attachments",
    "contents",
    "content_parts",
    "content_pages",
    "files",
    "open_files",
    "dropped_files",
)
WORKER = "strata_core_memory_worker"


def upgrade() -> None:
    """Creates the tables of folders and files."""
    _create_folders()
    _create_contents()
    _create_files()
    for table in TABLES:
        op.execute(tenant_policy_sql(table))
    _let_the_worker_in()


def _create_folders() -> None:
    # The revision rises with every change of its files that a prompt shows: a file added, removed,
    # replaced, read, failed. So an unchanged prompt is recognized without reading the files.
    op.execute(
        """
        CREATE TABLE folders (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            name text COLLATE "C" NOT NULL,
            description text NOT NULL,
            instructions text NOT NULL,
            revision bigint NOT NULL DEFAULT 1,
            file_count integer NOT NULL DEFAULT 0,
            create_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, id),
            CONSTRAINT folders_name UNIQUE (project_id, name)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE folder_attachments (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            folder_id text COLLATE "C" NOT NULL,
            position bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, agent_id, folder_id),
            CONSTRAINT folder_attachments_agent FOREIGN KEY (project_id, agent_id)
                REFERENCES prepared_agents (project_id, agent_id) ON DELETE CASCADE,
            CONSTRAINT folder_attachments_folder FOREIGN KEY (project_id, folder_id)
                REFERENCES folders (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute(
        "CREATE INDEX folder_attachments_by_folder ON folder_attachments (project_id, folder_id)"
    )


def _create_contents() -> None:
    # One row for equal bytes that are read in the same way, for any number of files. The key is
    # "<sha256>" for text and "<sha256>-<format>" for converted files: the same bytes give different
    # texts as HTML and as plain text.
    op.execute(
        """
        CREATE TABLE contents (
            project_id text COLLATE "C" NOT NULL,
            content_hash text COLLATE "C" NOT NULL,
            size_bytes bigint NOT NULL,
            media_type text NOT NULL,
            format text NOT NULL,
            state text NOT NULL CHECK (state IN ('stored', 'text', 'failed')),
            error text NOT NULL DEFAULT '',
            line_count integer NOT NULL DEFAULT 0,
            char_count bigint NOT NULL DEFAULT 0,
            lease_until timestamptz,
            attempts integer NOT NULL DEFAULT 0,
            create_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, content_hash)
        )
        """
    )
    op.execute("CREATE INDEX contents_to_read ON contents (create_time) WHERE state = 'stored'")
    # During an upload the parts are stored under the id of the upload, "upload-...", which is
    # replaced by the content hash when all parts have arrived. So there is no foreign key.
    op.execute(
        """
        CREATE TABLE content_parts (
            project_id text COLLATE "C" NOT NULL,
            content_hash text COLLATE "C" NOT NULL,
            part integer NOT NULL,
            data bytea NOT NULL,
            create_time timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (project_id, content_hash, part)
        )
        """
    )
    # Compressing a megabyte that is mostly compressed already (PDF, DOCX) costs more than it saves.
    op.execute("ALTER TABLE content_parts ALTER COLUMN data SET STORAGE EXTERNAL")
    op.execute(
        "CREATE INDEX content_parts_staged ON content_parts (create_time)"
        " WHERE content_hash LIKE 'upload-%'"
    )
    op.execute(
        """
        CREATE TABLE content_pages (
            project_id text COLLATE "C" NOT NULL,
            content_hash text COLLATE "C" NOT NULL,
            page integer NOT NULL,
            first_line integer NOT NULL,
            line_count integer NOT NULL,
            text text NOT NULL,
            PRIMARY KEY (project_id, content_hash, page),
            CONSTRAINT content_pages_content FOREIGN KEY (project_id, content_hash)
                REFERENCES contents (project_id, content_hash) ON DELETE CASCADE
        )
        """
    )
    op.execute(
        "CREATE INDEX content_pages_by_line ON content_pages (project_id, content_hash, first_line)"
    )


def _create_files() -> None:
    op.execute(
        """
        CREATE TABLE files (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            folder_id text COLLATE "C" NOT NULL,
            name text COLLATE "C" NOT NULL,
            media_type text NOT NULL,
            content_hash text COLLATE "C" NOT NULL,
            state text NOT NULL CHECK (state IN ('parsing', 'indexing', 'ready', 'failed')),
            error text NOT NULL DEFAULT '',
            chunk_count integer NOT NULL DEFAULT 0,
            indexed_count integer NOT NULL DEFAULT 0,
            lease_until timestamptz,
            attempts integer NOT NULL DEFAULT 0,
            create_time timestamptz NOT NULL,
            update_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, id),
            CONSTRAINT files_name UNIQUE (project_id, folder_id, name),
            CONSTRAINT files_folder FOREIGN KEY (project_id, folder_id)
                REFERENCES folders (project_id, id) ON DELETE CASCADE,
            CONSTRAINT files_content FOREIGN KEY (project_id, content_hash)
                REFERENCES contents (project_id, content_hash)
        )
        """
    )
    op.execute("CREATE INDEX files_by_content ON files (project_id, content_hash)")
    # Files whose chunks have to be sent to the index, and files that are being indexed.
    op.execute(
        "CREATE INDEX files_to_send ON files (update_time)"
        " WHERE state = 'indexing' AND chunk_count = 0"
    )
    op.execute(
        "CREATE INDEX files_in_index ON files (project_id, id)"
        " WHERE state = 'indexing' AND chunk_count > 0"
    )
    # Lines 1 to 0 mean the whole file.
    op.execute(
        """
        CREATE TABLE open_files (
            project_id text COLLATE "C" NOT NULL,
            agent_id text COLLATE "C" NOT NULL,
            file_id text COLLATE "C" NOT NULL,
            start_line integer NOT NULL,
            end_line integer NOT NULL,
            last_access_time timestamptz NOT NULL,
            PRIMARY KEY (project_id, agent_id, file_id),
            CONSTRAINT open_files_agent FOREIGN KEY (project_id, agent_id)
                REFERENCES prepared_agents (project_id, agent_id) ON DELETE CASCADE,
            CONSTRAINT open_files_file FOREIGN KEY (project_id, file_id)
                REFERENCES files (project_id, id) ON DELETE CASCADE
        )
        """
    )
    op.execute("CREATE INDEX open_files_by_file ON open_files (project_id, file_id)")
    # Files and whole folders that the index still has to delete. A process that was indexing a
    # deleted file may send chunks until its lease ends, so the row is kept until then.
    op.execute(
        """
        CREATE TABLE dropped_files (
            project_id text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            due_time timestamptz NOT NULL,
            keep_until timestamptz NOT NULL,
            PRIMARY KEY (project_id, id)
        )
        """
    )
    op.execute("CREATE INDEX dropped_files_due ON dropped_files (due_time)")


def _let_the_worker_in() -> None:
    """Grants the worker to claim work of every project, without names, bytes and text."""
    op.execute(worker_policy_sql("contents", "core_memory"))
    op.execute(
        grant_columns_sql(
            "SELECT",
            ["project_id", "content_hash", "state", "lease_until", "attempts", "create_time"],
            "contents",
            WORKER,
        )
    )
    op.execute(grant_columns_sql("UPDATE", ["lease_until", "attempts"], "contents", WORKER))
    op.execute(worker_policy_sql("files", "core_memory"))
    op.execute(
        grant_columns_sql(
            "SELECT",
            [
                *("project_id", "id", "folder_id", "content_hash", "state"),
                *("lease_until", "attempts", "update_time", "chunk_count"),
            ],
            "files",
            WORKER,
        )
    )
    op.execute(grant_columns_sql("UPDATE", ["lease_until", "attempts"], "files", WORKER))
    op.execute(
        worker_policy_sql("content_parts", "core_memory", using="content_hash LIKE 'upload-%'")
    )
    op.execute(grant_sql("DELETE", "content_parts", WORKER))
    op.execute(
        grant_columns_sql(
            "SELECT", ["project_id", "content_hash", "part", "create_time"], "content_parts", WORKER
        )
    )
    op.execute(worker_policy_sql("dropped_files", "core_memory"))
    op.execute(grant_sql("SELECT, UPDATE, DELETE", "dropped_files", WORKER))


def downgrade() -> None:
    """Drops folders and files, with their bytes; their data in the index stays."""
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {table}")
